"""The step of a search whose sentences each have a slot and a position of their own, for any set of slots.

Sentences join and leave between two steps: nothing is moved, because a step computes the slots that are listed in
`SlotState.active`, and each of its operations finds the memory of a row through this list.  Shapes depend only on the
number of listed slots, so that a CUDA graph of a number serves every set of that many sentences.

Beams do not move either.  Row r of a slot writes its keys and values at its position, and `SlotState.origins` tells for
each row and earlier position which row of the slot wrote it; attention gathers the keys.  Chosen tokens are kept with
the row that they continue, and a hypothesis is traced back once, when its sentence is complete.

`PlainOperations` are the operations in PyTorch, without reading from the device; on a GPU,
`dragoman.nn.fast.cuda.decoding` computes the same with few kernels.

Letters: P slots and one more that is never used, n listed slots, K beams, R = n*K rows, S source length, L target
capacity, H heads, Hkv key-value heads, D d_model, Dk key size, Dh head size, V vocabulary, C cross features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.models.seq2seq import Network
from dragoman.models.transformer import Decoder, Transformer
from dragoman.nn.attention import CrossAttention, SelfAttention
from dragoman.nn.layers import DecoderLayer, FeedForward, SubLayer
from dragoman.nn.positions import T5, Alibi, Learned, Positions, Rotary, Sinusoidal
from dragoman.tokenizers import BOS, EOS, PAD

FIELDS = POSITION, LIMIT, MIN_LENGTH, NBEST, DONE, LENGTH = tuple(range(6))
"""Rows of `SlotState.info`."""
JOINING = 1 + len(FIELDS) + 2
"""Columns of `SlotStep.join` after the ids: slot, `SlotState.info`, and `SlotState.alpha` as two integers."""
RUNNING, ENDED, NOT_A_NUMBER = range(3)
"""Values of `DONE`."""
_NEVER = float("-inf")
_POSITIONS = (Positions, Sinusoidal, Learned, Rotary, T5, Alibi)


def slots_unsupported_reasons(model: Network) -> list[str]:
    """Return why rows of this model cannot be at different positions; empty if they can."""
    if not isinstance(model, Transformer) or type(model.decoder) is not Decoder:
        return [f"its architecture is {model.architecture}"]
    reasons = []
    if type(model.decoder.positions) not in _POSITIONS:
        reasons.append(f"its positions are {type(model.decoder.positions).__name__}")
    layers = model.decoder.layers
    if any(type(layer) is not DecoderLayer or type(layer.self_attn) is not SelfAttention for layer in layers):
        reasons.append("its decoder has layers without softmax self-attention")
    elif any(isinstance(part, SubLayer) and part.order == "sandwich" for part in model.decoder.modules()):
        reasons.append("its order is sandwich")
    return reasons


class SlotState:
    """The memory of P slots, and of one more, number P, that is never used and stands for none.

    info: (6, P+1) position, length limit, minimum length, number of hypotheses to return, 0 while it runs, and source
    length.  alpha: (P+1,).  A slot at position 0 is empty: its other memory is not read.

    keys, values: per layer, ((P+1)*K, L, Hkv, Dk or Dh).  memory: per layer, (P+1, S, C), those of the source.
    origins: (2, P+1, K, L) the row (0 to K - 1) that wrote an earlier position, for even and odd positions.  forced:
    (P+1, L) tokens that must be chosen, -1 = none.  inputs: (P+1, K) last tokens.  sums: (P+1, K) log-probabilities,
    -inf for an empty row; totals: the same in float64.  history: (P+1, 3, K, L) chosen tokens, their log-probabilities
    (as float32), and the rows that they continue.  pool: (P+1, K) complete hypotheses, best first: their scores, -inf =
    none, and 2 * (position * K + row) of their last token, + 1 if the length limit ended them.
    """

    def __init__(self, model: Transformer, slots: int, beams: int, source: int, capacity: int) -> None:
        decoder, device = model.decoder, model.device
        like = next(model.parameters())
        self.slots, self.beams, self.source, self.capacity = slots, beams, source, capacity
        every = slots + 1

        def new(dtype: torch.dtype, *shape: int, value: float = 0) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self.keys, self.values, self.memory = [], [], []
        for own, cross in _attentions(decoder):
            shape = every * beams, capacity, own.n_kv_heads
            self.keys.append(like.new_zeros(*shape, own.d_key))
            self.values.append(like.new_zeros(*shape, own.d_head))
            self.memory.append(like.new_zeros(every, source, sum(cross.parts)))
        self.info = new(torch.int32, len(FIELDS), every)
        self.info[LIMIT:] = 1  # also ENDED
        self.alpha = new(torch.float64, every)
        self.active = new(torch.int32, slots, value=slots)
        self.origins = new(torch.int32, 2, every, beams, capacity)
        self.forced = new(torch.int32, every, capacity, value=-1)
        self.inputs = new(torch.int32, every, beams)
        self.sums = new(torch.float32, every, beams)
        self.totals = new(torch.float64, every, beams)
        self.history = new(torch.int32, every, 3, beams, capacity)
        self.log_probs = self.history.view(torch.float32)[:, 1]
        self.pool_scores = new(torch.float64, every, beams)
        self.pool_at = new(torch.int32, every, beams)

    @staticmethod
    def bytes_per_slot(model: Transformer, beams: int, source: int, capacity: int) -> int:
        """Return the bytes of device memory that a slot takes."""
        size, count = next(model.parameters()).element_size(), 0
        for own, cross in _attentions(model.decoder):
            count += beams * capacity * own.n_kv_heads * (own.d_key + own.d_head) + source * sum(cross.parts)
        return count * size + beams * capacity * 24 + capacity * 4


def _attentions(decoder: Decoder) -> Iterator[tuple[SelfAttention, CrossAttention]]:
    for layer in decoder.layers:
        assert isinstance(layer, DecoderLayer) and isinstance(layer.self_attn, SelfAttention)
        yield layer.self_attn, layer.cross_attn


class PlainOperations:
    """The operations of a step in PyTorch.  active: (n,) the slots of the step."""

    @staticmethod
    def embed(decoder: Decoder, state: SlotState, active: Tensor) -> Tensor:
        """Return the embedded last tokens (R, D)."""
        at = _positions(state, active)
        tokens = torch.where((at == 0)[:, None], BOS, state.inputs[active.long()]).flatten()
        x, _ = decoder.positions.embed(decoder.embedding(tokens[None]), at.repeat_interleave(state.beams), None)
        out: Tensor = decoder.embedding_norm(x)[0]
        return out

    @staticmethod
    def attend_self(
        q: Tensor, k: Tensor, v: Tensor, state: SlotState, active: Tensor, layer: int, bias: Tensor | None
    ) -> Tensor:
        """Append keys (R, Hkv, Dk) and values (R, Hkv, Dh) and return what queries (R, H, Dk) find: (R, H*Dh).

        bias: (H, L) for each distance, or None.
        """
        keys, values = state.keys[layer], state.values[layer]
        beams, capacity = state.beams, state.capacity
        at = _positions(state, active).repeat_interleave(beams)  # (R,)
        slot = active.long().repeat_interleave(beams)
        beam = torch.arange(beams, device=q.device).repeat(active.numel())
        running = state.info[DONE, slot] == RUNNING
        row = torch.where(running, slot, state.slots) * beams + beam
        keys[row, at], values[row, at] = k, v
        places = torch.arange(capacity, device=q.device)
        rows = slot[:, None] * beams + state.origins[at % 2, slot, beam]  # (R, L)
        rows = torch.where(places == at[:, None], row[:, None], rows)
        group = q.size(1) // k.size(1)
        found_keys = keys[rows, places].repeat_interleave(group, 2)  # (R, L, H, Dk)
        found_values = values[rows, places].repeat_interleave(group, 2)
        scores = torch.einsum("rhd,rlhd->rhl", q, found_keys) / math.sqrt(q.size(2))
        distance = at[:, None] - places  # (R, L)
        if bias is not None:
            scores = scores + bias[:, distance.clamp(min=0)].transpose(0, 1)
        weights = scores.masked_fill((distance < 0)[:, None], _NEVER).softmax(-1)
        return torch.einsum("rhl,rlhd->rhd", weights, found_values).flatten(1)

    @staticmethod
    def attend_cross(q: Tensor, attention: CrossAttention, state: SlotState, active: Tensor, layer: int) -> Tensor:
        """Return what queries (R, H, Dk) find in the memory of their slots: (R, H*Dh)."""
        count, heads = active.numel(), attention.n_heads
        memory = state.memory[layer][active.long()]  # (n, S, C)
        k, v = (
            part.unflatten(2, (attention.n_kv_heads, -1)).repeat_interleave(heads // attention.n_kv_heads, 2)
            for part in memory.split(attention.parts, dim=2)
        )
        scores = torch.einsum("nkhd,nshd->nkhs", q.unflatten(0, (count, -1)), k) / math.sqrt(q.size(2))
        outside = torch.arange(state.source, device=q.device) >= state.info[LENGTH, active.long()][:, None]  # (n, S)
        weights = scores.masked_fill(outside[:, None, None], _NEVER).softmax(-1)
        return torch.einsum("nkhs,nshd->nkhd", weights, v).flatten(2).flatten(0, 1)

    @staticmethod
    def project(
        x: Tensor, update: Tensor | None, norm: nn.Module | None, keeps_norm: bool, layer: nn.Module | None, relu: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream (R, D), which is x + update or its norm, and layer(norm(x + update)).

        update, norm, layer: None = without.  relu: whether relu follows the layer.
        """
        x = x if update is None else x + update
        y = x if norm is None else norm(x)
        out = y if layer is None else layer(y)
        return y if keeps_norm else x, out.relu() if relu else out

    @staticmethod
    def choose(logits: Tensor, state: SlotState, active: Tensor) -> None:
        """Append a token to each row: the K best continuations of each slot, as `pytorch.search` chooses them.

        logits: (R, V).  Continuations that end move to the pool; a slot ends when none of the others can enter the
        hypotheses that it returns.
        """
        count, beams, device = active.numel(), state.beams, logits.device
        slots = active.long()
        at, limit, least, nbest, done, _ = state.info[:, slots]
        running, rank = done == RUNNING, torch.arange(beams, device=device)
        at = torch.where(running, at, 0)
        fresh = (at == 0)[:, None]
        sums = torch.where(fresh, torch.where(rank == 0, 0.0, _NEVER), state.sums[slots])  # (n, K)
        totals = torch.where(fresh, 0.0, state.totals[slots])
        log_probs = torch.log_softmax(logits.float(), -1).view(count, beams, -1)
        invalid = (log_probs[..., 0].isnan() & (sums > _NEVER)).any(1)

        token = torch.arange(log_probs.size(2), device=device)
        forbidden = (token == PAD) | (token == BOS) | ((token == EOS) & (at < least)[:, None])  # (n, V)
        allowed = log_probs.masked_fill(forbidden[:, None], _NEVER)
        at_limit = limit == at + 1
        only = torch.where(at_limit, EOS, state.forced[slots, at.long()])[:, None]
        cut = at_limit[:, None] & (allowed.argmax(-1) != EOS)  # (n, K)
        chosen_for = torch.where((token == only)[:, None], log_probs, _NEVER)
        allowed = torch.where((only >= 0)[..., None], chosen_for, allowed)
        # Greedy search compares without the sum, to which two tokens may add up to the same value.
        ranked = allowed if beams == 1 else allowed + sums[..., None]
        _, index = ranked.flatten(1).topk(beams, dim=1)
        origin, chosen = index // token.numel(), index % token.numel()  # (n, K)
        new = allowed.flatten(1).gather(1, index)
        pool_scores = torch.where(fresh, _NEVER, state.pool_scores[slots])
        width = beams - (pool_scores > _NEVER).sum(1, keepdim=True)  # `shrink_beam`
        sums, totals = sums.gather(1, origin) + new, totals.gather(1, origin) + new.double()
        sums = sums.masked_fill(rank >= width, _NEVER)

        ended = (chosen == EOS) & (sums > _NEVER)
        scores = (totals / _penalty(at + 1, state.alpha[slots])[:, None]).masked_fill(~ended, _NEVER)
        place = (2 * (at[:, None] * beams + rank) + cut.gather(1, origin)).int()
        scores, order = torch.cat([pool_scores, scores], 1).sort(dim=1, descending=True, stable=True)
        pool_at = torch.cat([state.pool_at[slots], place], 1).gather(1, order)
        sums = sums.masked_fill(ended, _NEVER)
        bound = sums.amax(1).double() / _penalty(limit, state.alpha[slots])
        beaten = bound <= scores.gather(1, (nbest[:, None] - 1).long())[:, 0]
        sums = sums.masked_fill(beaten[:, None], _NEVER)

        into = torch.where(running, slots, state.slots)
        here = into[:, None], rank, at[:, None].long()
        history = state.history.transpose(0, 1)
        history[0][here], history[2][here] = chosen.int(), origin.int()
        state.log_probs[here] = new
        rows = state.origins[at[:, None] % 2, slots[:, None], origin]  # (n, K, L)
        rows = torch.where(torch.arange(state.capacity, device=device) == at[:, None, None], origin[..., None], rows)
        state.origins[((at + 1) % 2)[:, None], into[:, None], rank] = rows.int()
        state.inputs[into], state.sums[into], state.totals[into] = chosen.int(), sums, totals
        state.pool_scores[into], state.pool_at[into] = scores[:, :beams], pool_at[:, :beams]
        finished = torch.where(invalid, NOT_A_NUMBER, (~(sums > _NEVER).any(1)).int())  # ENDED = 1
        state.info[DONE].index_copy_(0, into, torch.where(running, finished, ENDED).int())
        state.info[POSITION].index_copy_(0, into, torch.where(running, at + 1, 0))


def _positions(state: SlotState, active: Tensor) -> Tensor:
    """Return the positions (n,) of slots, 0 for those that do not run."""
    at, done = state.info[POSITION, active.long()], state.info[DONE, active.long()]
    return torch.where(done == RUNNING, at, 0).long()


def _penalty(length: Tensor, alpha: Tensor) -> Tensor:
    return torch.exp(alpha * torch.log((5.0 + length.double()) / 6.0))


@dataclass(frozen=True)
class _Sublayer:
    """A sublayer: its norm, its first product (None: part of `rest`), and what follows for (R, features) and slots."""

    around: SubLayer
    first: nn.Module | None
    rest: Callable[[Tensor, Tensor], Tensor]
    relu: bool = False


class SlotStep:
    """The step of a model over the slots of a state."""

    def __init__(self, model: Transformer, state: SlotState, operations: Any) -> None:
        self.model, self.state, self.operations = model, state, operations
        decoder = model.decoder
        like = next(model.parameters())
        decoder.positions.ensure_length(state.capacity, like)
        places = torch.arange(state.capacity, device=like.device)
        static = decoder.positions.static_bias(places[-1:], places)  # (H, 1, L)
        self.bias = None
        if static is not None:
            heads = next(_attentions(decoder))[0].n_heads
            self.bias = static[:, 0].flip(1).expand(heads, -1).contiguous()
        self.rotates = isinstance(decoder.positions, Rotary)
        self.parts: list[_Sublayer] = []
        for index, (layer, (own, cross)) in enumerate(zip(decoder.layers, _attentions(decoder), strict=True)):
            assert isinstance(layer, DecoderLayer)
            is_plain = layer.ffn.activation is F.relu and not layer.ffn.gated
            self.parts += [
                _Sublayer(layer.around_self_attn, own.qkv, partial(self._self, own, index)),
                _Sublayer(layer.around_cross_attn, cross.q, partial(self._cross, cross, index)),
                _Sublayer(layer.around_ffn, layer.ffn.inner, partial(self._outer, layer.ffn), relu=True)
                if is_plain
                else _Sublayer(layer.around_ffn, None, partial(self._feed_forward, layer.ffn)),
            ]

    @torch.no_grad()
    def __call__(self, count: int) -> None:
        """Append a token to every row of the first `count` listed slots."""
        active, project = self.state.active[:count], self.operations.project
        x, update, final = self.operations.embed(self.model.decoder, self.state, active), None, None
        for place, part in enumerate(self.parts):
            is_post = part.around.order == "post"
            before = self.parts[place - 1].around.norm if place else None
            norm = before if is_post else part.around.norm
            x, y = project(x, update, norm, is_post, part.first, part.relu)
            update = part.rest(y, active)
            final = part.around.norm if is_post else self.model.decoder.final_norm
        _, y = project(x, update, final, True, None, False)
        if is_post:
            y = self.model.decoder.final_norm(y)
        self.operations.choose(self.model.output(y), self.state, active)

    def _linear(self, layer: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = self.operations.project(x, None, None, False, layer, False)[1]
        return out

    def _outer(self, network: FeedForward, hidden: Tensor, active: Tensor) -> Tensor:
        return self._linear(network.outer, hidden)

    def _feed_forward(self, network: FeedForward, x: Tensor, active: Tensor) -> Tensor:
        out: Tensor = network(x)
        return out

    def _self(self, attention: SelfAttention, index: int, qkv: Tensor, active: Tensor) -> Tensor:
        q, k, v = qkv.split(attention.parts, dim=1)
        q, k = q.unflatten(1, (-1, attention.d_key)), k.unflatten(1, (-1, attention.d_key))
        if self.rotates:
            # The rows are at positions of their own, like the positions of one row.
            at = _positions(self.state, active).repeat_interleave(self.state.beams)
            rotated = self.model.decoder.positions.rotate(q.transpose(0, 1)[None], k.transpose(0, 1)[None], at)
            q, k = (part[0].transpose(0, 1) for part in rotated)
        v = v.unflatten(1, (-1, attention.d_head))
        found = self.operations.attend_self(q, k, v, self.state, active, index, self.bias)
        return self._linear(attention.out, found)

    def _cross(self, attention: CrossAttention, index: int, q: Tensor, active: Tensor) -> Tensor:
        q = q.unflatten(1, (-1, attention.d_key))
        return self._linear(attention.out, self.operations.attend_cross(q, attention, self.state, active, index))

    @torch.no_grad()
    def encode(self, src: Tensor, lengths: Tensor, slots: Tensor) -> None:
        """Encode sources (B, S') of these lengths (B,) and write their keys and values into slots (B,)."""
        mask = torch.arange(src.size(1), device=src.device) < lengths[:, None]
        states = self.model.encode(src, mask).states  # (B, S', D)
        for (_, cross), memory in zip(_attentions(self.model.decoder), self.state.memory, strict=True):
            memory[slots.long(), : src.size(1)] = cross.kv(states)

    @torch.no_grad()
    def join(self, content: Tensor) -> None:
        """Encode sentences (B, S' + JOINING) and begin with them; see JOINING for the columns."""
        longest = content.size(1) - JOINING
        slots, info = content[:, longest].long(), content[:, longest + 1 : -2].t()
        self.state.info.index_copy_(1, slots, info)
        alpha = content[:, -2:].clone(memory_format=torch.contiguous_format).view(torch.float64)
        self.state.alpha.index_copy_(0, slots, alpha[:, 0])
        self.encode(content[:, :longest], info[LENGTH], slots)
