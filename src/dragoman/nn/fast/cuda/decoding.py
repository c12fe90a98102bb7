"""The operations of `dragoman.decoding.cuda_graphs.slots` as Triton kernels, a few per layer.

A kernel receives the list of slots and finds position, length and memory of a row through it.  It reads only positions
that are written, keys of a beam where the row lies that wrote them, and the logits once.  Sums are in float32.

Letters as in `slots.py`; M candidates per slot.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from dragoman.nn.fast import Linear
from dragoman.nn.layers import Embedding, LayerNorm, RMSNorm
from dragoman.nn.positions import T5, Alibi, Learned, Positions, Rotary, Sinusoidal
from dragoman.tokenizers import BOS, EOS, PAD

_CHUNK = 4096
"""Logits per program of `_candidates`."""
_FEW = 8
"""Rows up to which a layer is computed together with the norm before it: its time is that of starting kernels."""
_AT_ONCE = 2048
"""Weights that a program of `_project` reads at once."""
_WIDEST = 1 << 14
"""Features up to which a program normalizes a row."""
_PAD, _BOS, _EOS = tl.constexpr(PAD), tl.constexpr(BOS), tl.constexpr(EOS)


@triton.jit
def _embed(
    active, info, inputs, weight, table, out, scale, every, D, K: tl.constexpr, BLOCK: tl.constexpr,
    HAS_TABLE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(active + row // K)
    at = tl.load(info + slot)
    at = tl.where(tl.load(info + 4 * every + slot) == 0, at, 0)
    token = tl.load(inputs + slot * K + row % K)
    token = tl.where(at == 0, _BOS, token).to(tl.int64)
    d = tl.arange(0, BLOCK)
    x = tl.load(weight + token * D + d, mask=d < D, other=0.0).to(tl.float32) * scale
    if HAS_TABLE:
        x += tl.load(table + at * D + d, mask=d < D, other=0.0).to(tl.float32)
    tl.store(out + row.to(tl.int64) * D + d, x, mask=d < D)


@triton.jit
def _attend_self(
    q, k, v, out, keys, values, origins, active, info, bias,
    q_row, q_head, k_row, k_head, v_row, v_head, every, L, HKV, scale,
    K: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, DH: tl.constexpr, DKP: tl.constexpr, DHP: tl.constexpr,
    BJ: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(active + row // K).to(tl.int64)
    beam = row % K
    running = tl.load(info + 4 * every + slot) == 0
    at = tl.where(running, tl.load(info + slot), 0)
    kv_head = head // GROUP
    dk = tl.arange(0, DKP)
    dh = tl.arange(0, DHP)
    query = tl.load(q + row * q_row + head * q_head + dk, mask=dk < DK, other=0.0).to(tl.float32) * scale
    own_key = tl.load(k + row * k_row + kv_head * k_head + dk, mask=dk < DK, other=0.0)
    own_value = tl.load(v + row * v_row + kv_head * v_head + dh, mask=dh < DH, other=0.0)
    if head % GROUP == 0:
        place = ((slot * K + beam) * L + at) * HKV + kv_head
        tl.store(keys + place * DK + dk, own_key, mask=(dk < DK) & running)
        tl.store(values + place * DH + dh, own_value, mask=(dh < DH) & running)
    highest = tl.sum(query * own_key.to(tl.float32), 0)
    if HAS_BIAS:
        highest += tl.load(bias + head * L).to(tl.float32)
    total = highest * 0.0 + 1.0
    found = own_value.to(tl.float32)
    table = origins + (((at % 2) * every + slot) * K + beam) * L
    begin = at * 0  # no `range`: the interpreter of Triton 3.6 does not convert to int with NumPy 2.4
    while begin < at:
        j = begin + tl.arange(0, BJ)
        written = j < at
        if K == 1:  # noqa: SIM108 (decided at compile time)
            rows = j * 0 + slot
        else:
            rows = slot * K + tl.load(table + j, mask=written, other=0)
        places = (rows * L + j) * HKV + kv_head
        key = tl.load(keys + places[:, None] * DK + dk[None, :], mask=written[:, None] & (dk < DK)[None, :], other=0.0)
        scores = tl.sum(query[None, :] * key.to(tl.float32), 1)
        if HAS_BIAS:
            scores += tl.load(bias + head * L + at - j, mask=written, other=0.0).to(tl.float32)
        scores = tl.where(written, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 0))
        weights = tl.exp(scores - higher)
        shrink = tl.exp(highest - higher)
        value = tl.load(
            values + places[:, None] * DH + dh[None, :], mask=written[:, None] & (dh < DH)[None, :], other=0.0
        )
        found = found * shrink + tl.sum(weights[:, None] * value.to(tl.float32), 0)
        total = total * shrink + tl.sum(weights, 0)
        highest = higher
        begin += BJ
    heads = tl.num_programs(1)
    tl.store(out + (row * heads + head) * DH + dh, found / total, mask=dh < DH)


@triton.jit
def _attend_cross(
    q, out, memory, active, info, every, S, C, HKV, scale,
    K: tl.constexpr, KP: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, DH: tl.constexpr, DKP: tl.constexpr,
    DHP: tl.constexpr, BJ: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    slot = tl.load(active + number).to(tl.int64)
    length = tl.load(info + 5 * every + slot)
    kv_head = head // GROUP
    b = tl.arange(0, KP)
    dk = tl.arange(0, DKP)
    dh = tl.arange(0, DHP)
    rows = number * K + b
    query = (
        tl.load(
            q + (rows[:, None] * heads + head) * DK + dk[None, :], mask=(b < K)[:, None] & (dk < DK)[None, :], other=0.0
        ).to(tl.float32)
        * scale
    )  # (KP, DKP)
    highest = tl.full((KP,), float("-inf"), tl.float32)
    total = tl.zeros((KP,), tl.float32)
    found = tl.zeros((KP, DHP), tl.float32)
    begin = length * 0  # no `range`: the interpreter of Triton 3.6 does not convert to int with NumPy 2.4
    while begin < length:
        j = begin + tl.arange(0, BJ)
        inside = j < length
        places = (slot * S + j) * C
        key = tl.load(
            memory + places[:, None] + kv_head * DK + dk[None, :], mask=inside[:, None] & (dk < DK)[None, :], other=0.0
        ).to(tl.float32)
        scores = tl.sum(query[:, None, :] * key[None, :, :], 2)  # (KP, BJ)
        scores = tl.where(inside[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(highest - higher)
        value = tl.load(
            memory + places[:, None] + HKV * DK + kv_head * DH + dh[None, :],
            mask=inside[:, None] & (dh < DH)[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        found = found * shrink[:, None] + tl.sum(weights[:, :, None] * value[None, :, :], 1)
        total = total * shrink + tl.sum(weights, 1)
        highest = higher
        begin += BJ
    tl.store(
        out + (rows[:, None] * heads + head) * DH + dh[None, :], found / total[:, None],
        mask=(b < K)[:, None] & (dh < DH)[None, :],
    )  # fmt: skip


@triton.jit
def _summed(x, update, row, d, D, HAS_UPDATE: tl.constexpr):
    """Return x + update of a row in float32, and whether each of its BLOCK places is a feature."""
    inside = d < D
    total = tl.load(x + row * D + d, mask=inside, other=0.0).to(tl.float32)
    if HAS_UPDATE:
        total += tl.load(update + row * D + d, mask=inside, other=0.0).to(tl.float32)
    return total, inside


@triton.jit
def _normed(total, inside, d, weight, bias, eps, D, NORM: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Return the norm of a row; NORM: 0 none, 1 LayerNorm, 2 RMSNorm."""
    normed = total
    if NORM != 0:
        if NORM == 1:
            normed = tl.where(inside, total - tl.sum(total, 0) / D, 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(normed * normed, 0) / D + eps)
        normed = normed * scale * tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
        if HAS_BIAS:
            normed += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    return normed


@triton.jit
def _add_norm(
    x, update, weight, bias, added, out, eps, D, BLOCK: tl.constexpr, HAS_UPDATE: tl.constexpr, NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    total, inside = _summed(x, update, row, d, D, HAS_UPDATE)
    tl.store(added + row * D + d, total, mask=inside)
    tl.store(out + row * D + d, _normed(total, inside, d, weight, bias, eps, D, NORM, HAS_BIAS), mask=inside)


@triton.jit
def _project(
    x, update, norm_weight, norm_bias, weight, bias, kept, out, eps, D, N, R,
    BLOCK: tl.constexpr, BLOCK_N: tl.constexpr, HAS_UPDATE: tl.constexpr, NORM: tl.constexpr,
    HAS_NORM_BIAS: tl.constexpr, KEEPS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """A few outputs of a layer for all R rows; each program computes the norms, which takes less than reading them."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK)
    valid = n < N
    matrix = tl.load(
        weight + n.to(tl.int64)[:, None] * D + d[None, :], mask=valid[:, None] & (d < D)[None, :], other=0.0
    ).to(tl.float32)  # fmt: skip
    row = 0  # no `range`: the interpreter of Triton 3.6 does not convert to int with NumPy 2.4
    while row < R:
        total, inside = _summed(x, update, row, d, D, HAS_UPDATE)
        normed = _normed(total, inside, d, norm_weight, norm_bias, eps, D, NORM, HAS_NORM_BIAS)
        rounded = normed.to(weight.dtype.element_ty).to(tl.float32)
        if HAS_UPDATE or NORM != 0:
            if KEEPS_NORM:
                tl.store(kept + row * D + d, normed, mask=inside & (tl.program_id(0) == 0))
            else:
                tl.store(kept + row * D + d, total, mask=inside & (tl.program_id(0) == 0))
        result = tl.sum(matrix * rounded[None, :], 1)
        if HAS_BIAS:
            result += tl.load(bias + n, mask=valid, other=0.0).to(tl.float32)
        if RELU:
            result = tl.maximum(result, 0.0)
        tl.store(out + row * N + n, result, mask=valid)
        row += 1


@triton.jit
def _candidates(logits, active, info, best, best_at, highest, totals, every, V, K: tl.constexpr, CHUNK: tl.constexpr):
    """The K best allowed logits of a part of the vocabulary, its highest one, and the sum of exp(logit - highest)."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    slot = tl.load(active + row // K)
    at = tl.load(info + slot)
    least = tl.load(info + 2 * every + slot)
    token = part * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * V + token, mask=token < V, other=float("-inf")).to(tl.float32)
    top = tl.max(x, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    tl.store(highest + row * parts + part, base)
    tl.store(totals + row * parts + part, tl.sum(tl.exp(x - base), 0))
    x = tl.where((token == _PAD) | (token == _BOS) | ((token == _EOS) & (at < least)), float("-inf"), x)
    place = (row * parts + part) * K
    for k in tl.static_range(K):
        index = tl.argmax(x, 0, tie_break_left=True)
        tl.store(best + place + k, tl.max(x, 0))
        tl.store(best_at + place + k, part * CHUNK + index)
        x = tl.where(token == part * CHUNK + index, float("-inf"), x)


@triton.jit
def _penalty(length, alpha):
    return tl.exp(alpha * tl.log((length.to(tl.float64) + 5.0) / 6.0))


@triton.jit
def _choose(
    logits, best, best_at, highest, part_totals, active, info, alphas, forced, inputs, sums, totals, history,
    log_probs, origins, pool_scores, pool_at, every, V, L, PARTS,
    K: tl.constexpr, KP: tl.constexpr, PP: tl.constexpr, MP: tl.constexpr, LP: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    slot = tl.load(active + number).to(tl.int64)
    running = tl.load(info + 4 * every + slot) == 0
    at = tl.where(running, tl.load(info + slot), 0)
    limit = tl.load(info + every + slot)
    nbest = tl.load(info + 3 * every + slot)
    alpha = tl.load(alphas + slot)
    never = float("-inf")
    k = tl.arange(0, KP)
    beam = k < K
    fresh = at == 0
    first = tl.where(k == 0, 0.0, never)
    old_sums = tl.where(fresh, first, tl.load(sums + slot * K + k, mask=beam, other=never))
    old_sums = tl.where(beam, old_sums, never)
    old_totals = tl.where(fresh, 0.0, tl.load(totals + slot * K + k, mask=beam, other=0.0))

    # The logarithm of the sum over the vocabulary, per row.
    rows = number * K + k
    p = tl.arange(0, PP)
    inside = beam[:, None] & (p < PARTS)[None, :]
    tops = tl.load(highest + rows[:, None] * PARTS + p[None, :], mask=inside, other=never)
    parts = tl.load(part_totals + rows[:, None] * PARTS + p[None, :], mask=inside, other=0.0)
    top = tl.max(tops, 1)  # (KP,)
    top = tl.where(beam, top, 0.0)
    total = tl.sum(parts * tl.exp(tops - top[:, None]), 1)
    total = tl.where(beam, total, 1.0)
    invalid = tl.max(tl.where((old_sums > never) & ~(total > 0.0), 1, 0), 0) > 0
    normalizer = tl.log(total)

    m = tl.arange(0, MP)
    inside = beam[:, None] & (m < PARTS * K)[None, :]
    places = rows[:, None] * (PARTS * K) + m[None, :]
    values = tl.load(best + places, mask=inside, other=never)
    tokens = tl.load(best_at + places, mask=inside, other=0)
    values = (values - top[:, None]) - normalizer[:, None]  # log-probabilities (KP, MP)
    most = tl.argmax(values, 1, tie_break_left=True)  # (KP,)
    likely = tl.sum(tl.where(m[None, :] == most[:, None], tokens, 0), 1)
    at_limit = limit == at + 1
    only = tl.where(at_limit, _EOS, tl.load(forced + slot * L + tl.minimum(at, L - 1)))
    cut = at_limit & (likely != _EOS)  # (KP,)
    single = tl.load(logits + rows * V + tl.maximum(only, 0), mask=beam, other=never).to(tl.float32)
    single = (single - top) - normalizer
    alone = tl.where((m == 0)[None, :] & beam[:, None], single[:, None], never)
    values = tl.where(only >= 0, alone, values)
    tokens = tl.where(only >= 0, only, tokens)
    if K == 1:  # noqa: SIM108
        ranked = values
    else:
        ranked = values + old_sums[:, None]
    ranked = tl.reshape(ranked, (KP * MP,))
    values = tl.reshape(values, (KP * MP,))
    tokens = tl.reshape(tokens, (KP * MP,))
    index = tl.arange(0, KP * MP)

    j = tl.arange(0, LP)
    new_sums = tl.full((KP,), never, tl.float32)
    new_totals = tl.zeros((KP,), tl.float64)
    scores = tl.full((KP,), never, tl.float64)
    places = tl.zeros((KP,), tl.int32)
    penalty = _penalty(at + 1, alpha)
    pool = tl.load(pool_scores + slot * K + k, mask=beam, other=never)
    pool = tl.where(fresh | (k >= K), never, pool)
    width = K - tl.sum(tl.where(pool > never, 1, 0), 0)  # `shrink_beam`
    for i in tl.static_range(K):
        chosen = tl.argmax(ranked, 0, tie_break_left=True)
        reached = tl.max(ranked, 0)  # -inf: fewer than K continuations
        here = index == chosen
        ranked = tl.where(here, never, ranked)
        value = tl.sum(tl.where(here, values, 0.0), 0)
        token = tl.sum(tl.where(here, tokens, 0), 0)
        origin = chosen // MP
        own = k == origin
        log_prob = tl.where((reached > never) & (i < width), tl.sum(tl.where(own, old_sums, 0.0), 0) + value, never)
        exact = tl.sum(tl.where(own, old_totals, 0.0), 0) + value.to(tl.float64)
        truncated = tl.sum(tl.where(own & cut, 1, 0), 0)
        ended = (token == _EOS) & (log_prob > never)
        new_sums = tl.where(k == i, tl.where(ended, never, log_prob), new_sums)
        new_totals = tl.where(k == i, exact, new_totals)
        scores = tl.where((k == i) & ended, exact / penalty, scores)
        places = tl.where(k == i, 2 * (at * K + i) + truncated, places)
        entry = (slot * 3 * K + i) * L + at
        tl.store(history + entry, token, mask=running)
        tl.store(log_probs + entry, value, mask=running)
        tl.store(history + entry + 2 * K * L, origin, mask=running)
        tl.store(inputs + slot * K + i, token, mask=running)
        if K > 1:
            earlier = tl.load(
                origins + (((at % 2) * every + slot) * K + origin) * L + j, mask=(j < at) & running, other=0
            )
            earlier = tl.where(j == at, origin, earlier)
            tl.store(
                origins + ((((at + 1) % 2) * every + slot) * K + i) * L + j, earlier, mask=(j <= at) & (j < L) & running
            )

    # The K best of the pool and of those that ended; of equal scores, the earlier one.
    pool_places = tl.load(pool_at + slot * K + k, mask=beam, other=0)
    new_pool = tl.full((KP,), never, tl.float64)
    new_places = tl.zeros((KP,), tl.int32)
    for i in tl.static_range(K):
        kept = tl.max(pool, 0)
        entered = tl.max(scores, 0)
        from_pool = kept >= entered
        source = tl.where(from_pool, tl.argmax(pool, 0, tie_break_left=True), tl.argmax(scores, 0, tie_break_left=True))
        place = tl.sum(tl.where(k == source, tl.where(from_pool, pool_places, places), 0), 0)
        new_pool = tl.where(k == i, tl.where(from_pool, kept, entered), new_pool)
        new_places = tl.where(k == i, place, new_places)
        pool = tl.where(k == source, tl.where(from_pool, never, pool), pool)
        scores = tl.where(k == source, tl.where(from_pool, scores, never), scores)
    threshold = tl.sum(tl.where(k == nbest - 1, new_pool, 0.0), 0)
    bound = tl.max(new_sums, 0).to(tl.float64) / _penalty(limit, alpha)
    new_sums = tl.where(bound <= threshold, never, new_sums)
    left = tl.max(new_sums, 0) > never
    written = beam & running
    tl.store(sums + slot * K + k, new_sums, mask=written)
    tl.store(totals + slot * K + k, new_totals, mask=written)
    tl.store(pool_scores + slot * K + k, new_pool, mask=written)
    tl.store(pool_at + slot * K + k, new_places, mask=written)
    tl.store(info + slot, at + 1, mask=running)
    tl.store(info + 4 * every + slot, tl.where(invalid, 2, tl.where(left, 0, 1)), mask=running)


def _power(number: int) -> int:
    return triton.next_power_of_2(number)


class TritonOperations:
    """The operations of `PlainOperations` by kernels; modules that they do not know compute themselves."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def embed(self, decoder: Any, state: Any, active: Tensor) -> Tensor:
        kind, embedding = type(decoder.positions), decoder.embedding
        table = decoder.positions.table if kind in (Sinusoidal, Learned) else None
        known = table is not None or kind in (Positions, Rotary, T5, Alibi)
        if type(embedding) is not Embedding or not known or type(decoder.embedding_norm) is not nn.Identity:
            out: Tensor = self.plain.embed(decoder, state, active)
            return out
        weight, rows = embedding.weight, active.numel() * state.beams
        out = weight.new_empty(rows, weight.size(1))
        _embed[(rows,)](
            active, state.info, state.inputs, weight, table if table is not None else weight, out, embedding.scale,
            state.slots + 1, weight.size(1), K=state.beams, BLOCK=_power(weight.size(1)), HAS_TABLE=table is not None,
        )  # fmt: skip
        return out

    def attend_self(
        self, q: Tensor, k: Tensor, v: Tensor, state: Any, active: Tensor, layer: int, bias: Tensor | None
    ) -> Tensor:
        rows, heads, dk = q.shape
        dh = v.size(2)
        out = q.new_empty(rows, heads * dh)
        _attend_self[(rows, heads)](
            q, k, v, out, state.keys[layer], state.values[layer], state.origins, active, state.info,
            q if bias is None else bias,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            state.slots + 1, state.capacity, k.size(1), dk**-0.5,
            K=state.beams, GROUP=heads // k.size(1), DK=dk, DH=dh, DKP=_power(dk), DHP=_power(dh),
            BJ=64 if rows <= _FEW else 16, HAS_BIAS=bias is not None, num_warps=4 if rows <= _FEW else 2,
        )  # fmt: skip
        return out

    def attend_cross(self, q: Tensor, attention: Any, state: Any, active: Tensor, layer: int) -> Tensor:
        (rows, heads, dk), dh = q.shape, attention.d_head
        memory, width = state.memory[layer], _power(state.beams)
        out = q.new_empty(rows, heads * dh)
        _attend_cross[(active.numel(), heads)](
            q, out, memory, active, state.info, state.slots + 1, state.source, memory.size(2), attention.n_kv_heads,
            dk**-0.5, K=state.beams, KP=width, GROUP=heads // attention.n_kv_heads, DK=dk, DH=dh, DKP=_power(dk),
            DHP=_power(dh), BJ=64 if rows <= _FEW and width <= 2 else 16,
            num_warps=2 if width <= 2 and rows > _FEW else 4,
        )  # fmt: skip
        return out

    def project(
        self,
        x: Tensor,
        update: Tensor | None,
        norm: nn.Module | None,
        keeps_norm: bool,
        layer: nn.Module | None,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        rows, width = x.shape
        known = norm is None or isinstance(norm, LayerNorm | RMSNorm)
        if not known or width > _WIDEST:
            kept, out = self.plain.project(x, update, norm, keeps_norm, layer, relu)
            return kept, out
        kind = 0 if norm is None else 1 if isinstance(norm, LayerNorm) else 2
        weight, bias, eps = (
            (x, None, 0.0) if norm is None else (norm.weight, getattr(norm, "bias", None), float(norm.eps))  # type: ignore[arg-type]
        )
        changes = update is not None or norm is not None
        options = {"HAS_UPDATE": update is not None, "NORM": kind, "BLOCK": _power(width)}
        shared = x, x if update is None else update, weight, weight if bias is None else bias
        if rows <= _FEW and type(layer) is Linear and x.is_contiguous():
            out, kept = x.new_empty(rows, layer.out_features), torch.empty_like(x) if changes else x
            outputs = max(1, _AT_ONCE // _power(width))
            _project[(-(-layer.out_features // outputs),)](
                *shared, layer.weight, layer.weight if layer.bias is None else layer.bias, kept, out, eps, width,
                layer.out_features, rows, BLOCK_N=outputs, HAS_NORM_BIAS=bias is not None, KEEPS_NORM=keeps_norm,
                HAS_BIAS=layer.bias is not None, RELU=relu, **options,
            )  # fmt: skip
            return kept, out
        normed = x
        if changes:
            added, normed = torch.empty_like(x), torch.empty_like(x)
            _add_norm[(rows,)](*shared, added, normed, eps, width, HAS_BIAS=bias is not None, **options)
            x = normed if keeps_norm else added
        if layer is None:
            return x, normed
        if relu and type(layer) is Linear and layer.bias is not None:
            return x, torch._addmm_activation(layer.bias, normed, layer.weight.t(), use_gelu=False)  # one kernel
        projected = layer(normed)
        return x, projected.relu() if relu else projected

    def choose(self, logits: Tensor, state: Any, active: Tensor) -> None:
        rows, vocab = logits.shape
        beams, parts = state.beams, -(-vocab // _CHUNK)
        best = logits.new_empty(rows, parts, beams, dtype=torch.float32)
        best_at = torch.empty_like(best, dtype=torch.int32)
        highest = logits.new_empty(2, rows, parts, dtype=torch.float32)
        chunk = min(_CHUNK, _power(vocab))
        _candidates[(rows, parts)](
            logits, active, state.info, best, best_at, highest[0], highest[1], state.slots + 1, vocab, K=beams,
            CHUNK=chunk, num_warps=8,
        )  # fmt: skip
        candidates = _power(beams) * _power(parts * beams)
        _choose[(active.numel(),)](
            logits, best, best_at, highest[0], highest[1], active, state.info, state.alpha, state.forced, state.inputs,
            state.sums, state.totals, state.history, state.log_probs, state.origins, state.pool_scores, state.pool_at,
            state.slots + 1, vocab, state.capacity, parts,
            K=beams, KP=_power(beams), PP=_power(parts), MP=_power(parts * beams), LP=_power(state.capacity),
            num_warps=1 if candidates <= 512 else 4,
        )  # fmt: skip
