"""Scaled dot-product attention and its multi-head form (Vaswani et al. 2017, sections 3.2.1 and 3.2.2).

    Attention(Q, K, V) = softmax(Q K^T / sqrt(Dh) + bias) V

Keys and values may have fewer heads than queries: neighbouring heads of queries then share one (multi-query attention,
Shazeer 2019; grouped-query attention, Ainslie et al. 2023).

Letters: N rows, H heads (Hkv of keys and values), Tq/Tk query/key positions, B sentences, K beams, S source length,
D d_model, Dh head size.
A bias is added to the scores: 0 where a query may look, -inf where not; `mask_to_bias` makes one from a mask.

Three ways to the same numbers, tested against each other: `attend_explicit` writes the formula out and shows its
weights; `attend_short` does the same in few batched products with a backward of its own, which on a CPU beats every
fused kernel for sentences; `scaled_dot_product_attention` of torch takes the long ones and the GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.dropout import Dropout
from dragoman.nn.positions import Positions
from dragoman.nn.state import CrossKeyValues, SelfKeyValues
from dragoman.nn.taps import Tap, any_active, any_intervened

__all__ = [
    "AttentionTaps",
    "CrossAttention",
    "MultiHead",
    "SelfAttention",
    "attend_explicit",
    "attend_short",
    "causal_bias",
    "mask_to_bias",
]

_SHORT = 128 * 128
"""Scores a head up to which writing them out is at least as fast on a CPU as the fused kernel (bench/attention.py)."""


def mask_to_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Boolean mask, True = may attend -> 0 and -inf, of the same shape."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def causal_bias(q_pos: Tensor, k_pos: Tensor, dtype: torch.dtype) -> Tensor:
    """(Tq, Tk): a position sees itself and what came before."""
    return mask_to_bias(q_pos[:, None] >= k_pos[None, :], dtype)


@dataclass(frozen=True)
class AttentionTaps:
    """What a fused kernel never shows: Q K^T / sqrt(Dh), that with the bias added, and its softmax."""

    scores: Tap
    masked: Tap
    weights: Tap

    @property
    def active(self) -> bool:
        return any_active(self.scores, self.masked, self.weights)

    @property
    def is_intervened(self) -> bool:
        return any_intervened(self.scores, self.masked, self.weights)


def attend_explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    dropout: Dropout | None = None,
    taps: AttentionTaps | None = None,
) -> tuple[Tensor, Tensor]:
    """The formula, written out: outputs (N, H, Tq, Dh) and weights (N, H, Tq, Tk) as they were used, after dropout."""
    k, v = _repeat(k, q.size(1)), _repeat(v, q.size(1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))  # (N, H, Tq, Tk)
    if taps is not None:
        scores = taps.scores(scores)
    if bias is not None:
        scores = scores + bias
    if taps is not None:
        scores = taps.masked(scores)
    weights = scores.softmax(dim=-1)
    if taps is not None:
        weights = taps.weights(weights)
    if dropout is not None:
        weights = dropout(weights)
    return weights @ v, weights


def _in_order(q: Tensor, bias: Tensor | None) -> Tensor:
    """The bias with what keeps queries (N, H, T, Dh) from later ones."""
    pos = torch.arange(q.size(2), device=q.device)
    order = causal_bias(pos, pos, q.dtype)
    return order if bias is None else order + bias


def _repeat(x: Tensor, heads: int) -> Tensor:
    """(N, Hkv, T, Dh) -> (N, H, T, Dh): what a group of queries shares, for each of them."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), dim=1)


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        ctx.shapes = q.shape, k.shape
        n, h, tq, dh = q.shape
        group, tk = h // k.size(1), k.size(2)
        # Heads that share keys and values are folded into the query positions: (N*Hkv, group * Tq, Dh).
        q, k, v = q.reshape(-1, group * tq, dh), k.reshape(-1, tk, dh), v.reshape(-1, tk, dh)
        if bias is None:
            weights = torch.bmm(q, k.transpose(1, 2)).mul_(dh**-0.5).softmax(-1)
        else:
            if bias.dim() > 2 or group > 1:
                rows = bias.size(-2) if group == 1 else tq
                bias = bias.expand(n, h, rows, tk).reshape(-1, group * rows, tk)
            weights = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=dh**-0.5).softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return torch.bmm(weights, v).view(n, h, tq, dh)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, weights = ctx.saved_tensors
        of_queries, of_keys = ctx.shapes
        g = grads[0].reshape(q.shape)
        of_v = torch.bmm(weights.transpose(1, 2), g)
        of_weights = torch.bmm(g, v.transpose(1, 2))
        # The softmax's Jacobian: w * (g - sum(g * w)), here by torch's fused kernel for it.
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype).mul_(q.size(-1) ** -0.5)
        of_q = torch.bmm(of_scores, k)
        of_k = torch.bmm(of_scores.transpose(1, 2), q)
        return of_q.view(of_queries), of_k.view(of_keys), of_v.view(of_keys), None


def attend_short(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """As `attend_explicit`, in batched products with their own backward; the bias gets no gradient."""
    out: Tensor = _ShortAttention.apply(q, k, v, bias)  # type: ignore[no-untyped-call]
    return out


class MultiHead(nn.Module):
    """What every attention has: heads, the taps of the paper's quantities, the output projection W^O."""

    def __init__(self, d_model: int, n_heads: int, bias: bool) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.queries = Tap("row", "head", "query", "feature")
        self.keys = Tap("row", "head", "key", "feature")
        self.values = Tap("row", "head", "key", "feature")
        self.weights = Tap("row", "head", "query", "key")
        self.heads = Tap("row", "head", "query", "feature")
        self.out = nn.Linear(d_model, d_model, bias=bias)

    def split(self, x: Tensor, parts: tuple[int, ...]) -> tuple[Tensor, ...]:
        """(N, T, sum of parts) -> for each part its heads, (N, part / Dh, T, Dh)."""
        n, t, _ = x.shape
        heads = [part // self.d_head for part in parts]
        return tuple(part.transpose(1, 2) for part in x.view(n, t, sum(heads), self.d_head).split(heads, dim=2))

    def join(self, x: Tensor) -> Tensor:
        """(N, H, T, Dh) -> (N, T, D), through W^O."""
        n, _, t, _ = x.shape
        projected: Tensor = self.out(self.heads(x).transpose(1, 2).reshape(n, t, -1))
        return projected


class _SoftmaxAttention(MultiHead):
    """What self- and cross-attention share: heads of keys and values, dropout, the choice of the path."""

    def __init__(self, d_model: int, n_heads: int, dropout: float, bias: bool, n_kv_heads: int | None) -> None:
        super().__init__(d_model, n_heads, bias)
        self.n_kv_heads = n_kv_heads or n_heads
        self.dropout = Dropout(dropout)
        self.scores = Tap("row", "head", "query", "key")
        self.masked = Tap("row", "head", "query", "key")
        self.inner = AttentionTaps(self.scores, self.masked, self.weights)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool = False) -> Tensor:
        """Outputs (N, H, Tq, Dh) by the fastest path that makes what is asked for."""
        drops = self.training and self.dropout.p > 0
        short = q.device.type == "cpu" and q.size(2) * k.size(2) <= _SHORT
        explicit = drops or self.inner.is_intervened or (bias is not None and bias.requires_grad)
        if self.inner.active and not explicit:
            with torch.no_grad():  # only to be seen: what goes on is made as ever
                attend_explicit(q, k, v, _in_order(q, bias) if causal else bias, None, self.inner)
        if causal and (explicit or short):
            bias, causal = _in_order(q, bias), False
        if explicit:
            return attend_explicit(q, k, v, bias, self.dropout, self.inner)[0]
        if short and not torch.is_autocast_enabled(q.device.type):
            return attend_short(q, k, v, bias)
        k, v = _repeat(k, self.n_heads), _repeat(v, self.n_heads)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)


class SelfAttention(_SoftmaxAttention):
    """Queries, keys and values of one sequence; W^Q, W^K and W^V in one matrix (rows in this order).

    parts: how many rows each of the three has.
    """

    def __init__(
        self, d_model: int, n_heads: int, dropout: float = 0.0, bias: bool = True, n_kv_heads: int | None = None
    ) -> None:
        super().__init__(d_model, n_heads, dropout, bias, n_kv_heads)
        shared = self.n_kv_heads * self.d_head
        self.parts = (d_model, shared, shared)
        self.qkv = nn.Linear(d_model, sum(self.parts), bias=bias)

    def new_cache(self, rows: int, max_len: int, like: Tensor) -> SelfKeyValues:
        """An empty memory for `rows` rows of max_len positions, of the type and device of `like`."""
        return SelfKeyValues(rows, self.n_kv_heads, max_len, self.d_head, like)

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        pos: Tensor,
        bias: Tensor | None = None,
        causal: bool = False,
        cache: SelfKeyValues | None = None,
    ) -> Tensor:
        """x (N, T, D) at positions pos (T,) -> (N, T, D).

        bias: broadcast to (N, H, T, Tk), or None.  With a cache, which holds pos[0] positions, Tk is all up to here.
        """
        q, k, v = self.split(self.qkv(x), self.parts)  # (N, H, T, Dh), keys and values (N, Hkv, T, Dh)
        q, k = positions.rotate(q, k, pos)
        q, k, v = self.queries(q), self.keys(k), self.values(v)
        if cache is not None:
            k, v = cache.append(k, v)  # (N, Hkv, Tk, Dh)
        if positions.needs_weights:
            return self.join(self._attend_with_terms(q, k, v, positions, pos, bias, causal))
        if causal and k.size(2) > q.size(2):  # the cache held something: queries do not begin where keys do
            before = causal_bias(pos, torch.arange(k.size(2), device=k.device), q.dtype)
            bias, causal = before if bias is None else before + bias, False
        return self.join(self._attend(q, k, v, bias, causal))

    def _attend_with_terms(
        self, q: Tensor, k: Tensor, v: Tensor, positions: Positions, pos: Tensor, bias: Tensor | None, causal: bool
    ) -> Tensor:
        k_pos = torch.arange(k.size(2), device=q.device)
        if causal:
            bias = causal_bias(pos, k_pos, q.dtype) + (0 if bias is None else bias)
        extra = positions.query_bias(q, pos, k_pos)
        if extra is not None:
            bias = extra if bias is None else bias + extra
        out, weights = attend_explicit(q, k, v, bias, self.dropout, self.inner)
        term = positions.value_term(weights, pos, k_pos)
        return out if term is None else out + term


class CrossAttention(_SoftmaxAttention):
    """Queries of the target, keys and values of the memory, which are projected once a sentence.

    parts: how many rows W^K and W^V have in the matrix that holds both.
    """

    def __init__(
        self, d_model: int, n_heads: int, dropout: float = 0.0, bias: bool = True, n_kv_heads: int | None = None
    ) -> None:
        super().__init__(d_model, n_heads, dropout, bias, n_kv_heads)
        shared = self.n_kv_heads * self.d_head
        self.parts = (shared, shared)
        self.q = nn.Linear(d_model, d_model, bias=bias)
        self.kv = nn.Linear(d_model, sum(self.parts), bias=bias)

    def project(self, memory: Tensor) -> CrossKeyValues:
        """memory (B, S, D) -> its keys and values (B, Hkv, S, Dh)."""
        k, v = self.split(self.kv(memory), self.parts)
        return CrossKeyValues(self.keys(k), self.values(v))

    def forward(self, x: Tensor, memory: CrossKeyValues, bias: Tensor | None = None) -> Tensor:
        """x (N, T, D), N = B*K rows -> (N, T, D); bias (B, 1, 1, S) or None.

        The beams of a sentence are folded into its query positions, so that keys and values are never tiled.
        """
        n, t, d = x.shape
        b = memory.keys.size(0)
        (q,) = self.split(self.q(x).view(b, n // b * t, d), (d,))  # (B, H, K*T, Dh)
        return self.join(self._attend(self.queries(q), memory.keys, memory.values, bias)).view(n, t, d)
