"""Scaled dot-product attention and multi-head attention (Vaswani et al. 2017, sections 3.2.1 and 3.2.2).

    Attention(Q, K, V) = softmax(Q K^T / sqrt(Dk) + bias) V,    Q = x W^Q,  K = y W^K,  V = y W^V

Vectors are rows: row i of x is position i.  The bias is 0 where a query may attend and -inf elsewhere.  Values of a
head have Dh features, D / H unless `d_value` is given, and queries and keys Dk, which is Dh unless `d_key` is given.
Keys and values may have fewer heads than queries, each shared by a group of neighbouring query heads (multi-query
attention, Shazeer 2019; grouped-query attention, Ainslie et al. 2023).

Four implementations return the same numbers and are tested against each other: `attend_explicit` writes out the
formula and returns the weights; `attend_short` uses batched products with its own backward pass, the fastest on a CPU
for sequences as short as sentences, as the Triton kernels of `nn/cuda` are on a GPU; PyTorch's
`scaled_dot_product_attention` is used for long sequences.

Shapes: B sentences, K beams, N = B*K rows, H heads, Hkv key-value heads, T positions, Tq/Tk query/key positions,
S source length, D d_model, Dk size of queries and keys per head (key size), Dh size of values per head (head size).
"""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.cuda.attention import attend, can_attend
from dragoman.nn.cuda.launch import uses_triton
from dragoman.nn.dropout import Dropout
from dragoman.nn.native import kernels
from dragoman.nn.positions import Positions
from dragoman.nn.products import Linear
from dragoman.nn.state import CrossKeyValues, SelfKeyValues
from dragoman.nn.taps import Tap, any_active, any_intervened

__all__ = [
    "AttentionTaps",
    "CrossAttention",
    "MultiHead",
    "SelfAttention",
    "add_biases",
    "attend_explicit",
    "attend_short",
    "causal_bias",
    "mask_to_bias",
    "padding_bias",
]

_SHORT = 128 * 128
"""Scores per head up to which, on a CPU, writing them out is as fast as the fused kernel (bench/attention.py)."""


def mask_to_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a boolean mask (True = may attend) to a bias of 0 and -inf of the same shape."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def padding_bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the bias (B, 1, 1, S) of a padding mask (B, S), or None for None."""
    return None if mask is None else mask_to_bias(mask[:, None, None, :], dtype)


def causal_bias(q_pos: Tensor, k_pos: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias (Tq, Tk) that lets each position attend to itself and to earlier positions."""
    return mask_to_bias(q_pos[:, None] >= k_pos[None, :], dtype)


def add_biases(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the sum of two biases, either of which may be None."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


class _WithoutCudnn:
    """Lets PyTorch choose among its other kernels: that of cuDNN builds a plan for every new shape, for 10 ms (H200).

    Most batches of sentences have a new shape.  The setting is one of the process: the last thread that leaves restores
    it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._enabled = 0, True

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._enabled = torch.backends.cuda.cudnn_sdp_enabled()
                torch.backends.cuda.enable_cudnn_sdp(False)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.backends.cuda.enable_cudnn_sdp(self._enabled)


_WITHOUT_CUDNN = _WithoutCudnn()


class AttentionTaps(NamedTuple):
    """Taps for what a fused kernel does not expose: Q K^T / sqrt(Dk), the same plus the bias, and the softmax."""

    scores: Tap
    masked: Tap
    weights: Tap


_NO_TAPS = AttentionTaps(Tap(), Tap(), Tap())


def attend_explicit(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: Dropout | None = None, taps: AttentionTaps = _NO_TAPS
) -> tuple[Tensor, Tensor]:
    """Return outputs (N, H, Tq, Dh) and weights (N, H, Tq, Tk), the latter after dropout."""
    k, v = _repeat(k, q.size(1)), _repeat(v, q.size(1))
    scores = taps.scores(q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)))  # (N, H, Tq, Tk)
    masked = taps.masked(scores if bias is None else scores + bias)
    weights = taps.weights(masked.softmax(dim=-1))
    if dropout is not None:
        weights = dropout(weights)
    return weights @ v, weights


def _with_causal(bias: Tensor | None, q: Tensor) -> Tensor | None:
    """Add the causal bias of queries (N, H, T, Dk) and T keys."""
    pos = torch.arange(q.size(2), device=q.device)
    return add_biases(causal_bias(pos, pos, q.dtype), bias)


def _repeat(x: Tensor, heads: int) -> Tensor:
    """(N, Hkv, T, Dk or Dh) -> (N, H, T, Dk or Dh): repeat each key or value head for its group of query heads."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), dim=1)


class _KernelAttention(torch.autograd.Function):
    """`_ShortAttention` by the C++ kernels."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        out, weights = kernels.attend(q, k, v, bias)
        ctx.save_for_backward(q, k, v, weights)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, weights = ctx.saved_tensors
        return (*kernels.attend_backward(q, k, v, weights, grads[0]), None)


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        ctx.shapes = q.shape, k.shape, v.shape
        n, h, tq, dk = q.shape
        group, tk, dh = h // k.size(1), k.size(2), v.size(3)
        # Query heads that share keys and values are folded into the query positions: (N*Hkv, group * Tq, Dk).
        q, k, v = q.reshape(-1, group * tq, dk), k.reshape(-1, tk, dk), v.reshape(-1, tk, dh)
        if bias is None:
            weights = torch.bmm(q, k.transpose(1, 2)).mul_(dk**-0.5).softmax(-1)
        else:
            if bias.dim() > 2 or group > 1:
                rows = bias.size(-2) if group == 1 else tq
                bias = bias.expand(n, h, rows, tk).reshape(-1, group * rows, tk)
            weights = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=dk**-0.5).softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return torch.bmm(weights, v).view(n, h, tq, dh)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, weights = ctx.saved_tensors
        q_shape, k_shape, v_shape = ctx.shapes
        grad = grads[0].reshape(q.size(0), q.size(1), v.size(2))
        grad_v = torch.bmm(weights.transpose(1, 2), grad)
        grad_weights = torch.bmm(grad, v.transpose(1, 2))
        # PyTorch's fused kernel for the Jacobian of the softmax: w * (g - sum(g * w)).
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype).mul_(q.size(-1) ** -0.5)
        grad_q = torch.bmm(grad_scores, k)
        grad_k = torch.bmm(grad_scores.transpose(1, 2), q)
        return grad_q.view(q_shape), grad_k.view(k_shape), grad_v.view(v_shape), None


def attend_short(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Return the outputs of `attend_explicit` by batched products; the bias receives no gradient."""
    tensors = (q, k, v) if bias is None else (q, k, v, bias)
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if needs_gradient and kernels.uses_kernels(*tensors) and q.numel() and v.numel():
        return _KernelAttention.apply(q, k, v, bias)  # type: ignore[no-any-return, no-untyped-call]
    return _ShortAttention.apply(q, k, v, bias)  # type: ignore[no-any-return, no-untyped-call]


def _split(x: Tensor, parts: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    n, t, _ = x.shape
    tensors = zip(x.split(parts, dim=2), sizes, strict=True)
    return tuple(part.view(n, t, part.size(2) // size, size).transpose(1, 2) for part, size in tensors)


class _Split(torch.autograd.Function):
    """`_split` whose backward pass does not copy the gradients that `kernels.attend_backward` has put together."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parts: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        return _split(x, parts, sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return kernels.join_heads(grads), None, None


class MultiHead(nn.Module):
    """Parts common to all attention: heads, the taps of the paper's quantities, and the output projection W^O."""

    def __init__(self, d_model: int, n_heads: int, bias: bool, d_key: int | None, d_value: int | None) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_value or d_model // n_heads
        self.d_key = d_key or self.d_head
        self.queries = Tap("row", "head", "query", "feature")
        self.keys = Tap("row", "head", "key", "feature")
        self.values = Tap("row", "head", "key", "feature")
        self.weights = Tap("row", "head", "query", "key")
        self.heads = Tap("row", "head", "query", "feature")
        self.out = Linear(n_heads * self.d_head, d_model, bias=bias)

    def split(self, x: Tensor, parts: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Split x (N, T, sum of parts) into parts, and each part into heads (N, part / size, T, size)."""
        if torch.is_grad_enabled() and x.requires_grad and (kernels.uses_kernels(x) or uses_triton(x)):
            return _Split.apply(x, parts, sizes)  # type: ignore[no-any-return, no-untyped-call]
        return _split(x, parts, sizes)

    def join(self, x: Tensor) -> Tensor:
        """Concatenate heads (N, H, T, Dh) and apply W^O: (N, T, D)."""
        n, _, t, _ = x.shape
        projected: Tensor = self.out(self.heads(x).transpose(1, 2).reshape(n, t, -1))
        return projected


class _SoftmaxAttention(MultiHead):
    """Parts common to self- and cross-attention: key-value heads, dropout, and the choice of implementation."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        dropout: float,
        bias: bool,
        n_kv_heads: int | None,
        d_key: int | None,
        d_value: int | None,
    ) -> None:
        super().__init__(d_model, n_heads, bias, d_key, d_value)
        self.n_kv_heads = n_kv_heads or n_heads
        self.dropout = Dropout(dropout)
        self.scores = Tap("row", "head", "query", "key")
        self.masked = Tap("row", "head", "query", "key")
        self.inner = AttentionTaps(self.scores, self.masked, self.weights)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool = False) -> Tensor:
        """Return outputs (N, H, Tq, Dh) by the fastest implementation that provides what dropout and taps require."""
        drops = self.training and self.dropout.p > 0
        short = q.device.type == "cpu" and q.size(2) * k.size(2) <= _SHORT
        explicit = drops or any_intervened(*self.inner) or (bias is not None and bias.requires_grad)
        if any_active(*self.inner) and not explicit:
            with torch.no_grad():  # for the taps only; the output still comes from the kernel
                attend_explicit(q, k, v, _with_causal(bias, q) if causal else bias, None, self.inner)
        if not explicit and can_attend(q, k, v, bias):
            return attend(q, k, v, bias, causal)
        if causal and (explicit or short or bias is not None):
            bias, causal = _with_causal(bias, q), False
        if explicit:
            return attend_explicit(q, k, v, bias, self.dropout, self.inner)[0]
        if short:
            with torch.autocast("cpu", enabled=False):
                dtype = torch.promote_types(q.dtype, torch.float32)
                bias = None if bias is None else bias.to(dtype)
                return attend_short(q.to(dtype), k.to(dtype), v.to(dtype), bias).to(q.dtype)
        k, v = _repeat(k, self.n_heads), _repeat(v, self.n_heads)
        with _WITHOUT_CUDNN if q.is_cuda else nullcontext():
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)


class SelfAttention(_SoftmaxAttention):
    """Attention of a sequence to itself, with W^Q, W^K and W^V in one matrix.

    `parts` are the numbers of output features of the three, in this order.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        n_kv_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
    ) -> None:
        super().__init__(d_model, n_heads, dropout, bias, n_kv_heads, d_key, d_value)
        self.parts = (n_heads * self.d_key, self.n_kv_heads * self.d_key, self.n_kv_heads * self.d_head)
        self.qkv = Linear(d_model, sum(self.parts), bias=bias)

    def new_cache(self, rows: int, max_len: int, like: Tensor) -> SelfKeyValues:
        """Return an empty cache of `rows` rows and `max_len` positions with the dtype and device of `like`."""
        return SelfKeyValues(rows, self.n_kv_heads, max_len, (self.d_key, self.d_head), like)

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        pos: Tensor,
        bias: Tensor | None = None,
        causal: bool = False,
        cache: SelfKeyValues | None = None,
    ) -> Tensor:
        """Attend from x (N, T, D) at positions pos (T,) and return (N, T, D).

        bias: broadcastable to (N, H, T, Tk), or None.  causal: mask later positions.  cache: the keys and values of the
        pos[0] earlier positions, extended by this call; Tk counts both.
        """
        # q (N, H, T, Dk), k (N, Hkv, T, Dk), v (N, Hkv, T, Dh)
        q, k, v = self.split(self.qkv(x), self.parts, (self.d_key, self.d_key, self.d_head))
        q, k = positions.rotate(q, k, pos)
        q, k, v = self.queries(q), self.keys(k), self.values(v)
        if cache is not None:
            k, v = cache.append(k, v)  # (N, Hkv, Tk, Dk), (N, Hkv, Tk, Dh)
        # `_attend` expects the first query at the first key, which a non-empty cache makes wrong.
        if not positions.needs_weights and not (causal and k.size(2) > q.size(2)):
            return self.join(self._attend(q, k, v, bias, causal))
        k_pos = torch.arange(k.size(2), device=k.device)
        if causal:
            bias = add_biases(causal_bias(pos, k_pos, q.dtype), bias)
        if not positions.needs_weights:
            return self.join(self._attend(q, k, v, bias))
        bias = add_biases(bias, positions.query_bias(q, pos, k_pos))
        out, weights = attend_explicit(q, k, v, bias, self.dropout, self.inner)
        term = positions.value_term(weights, pos, k_pos)
        return self.join(out if term is None else out + term)


class CrossAttention(_SoftmaxAttention):
    """Attention from the target to the memory, whose keys and values are projected once per sentence.

    `parts` are the numbers of output features of W^K and W^V in the matrix that holds both.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        n_kv_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
    ) -> None:
        super().__init__(d_model, n_heads, dropout, bias, n_kv_heads, d_key, d_value)
        self.parts = (self.n_kv_heads * self.d_key, self.n_kv_heads * self.d_head)
        self.q = Linear(d_model, n_heads * self.d_key, bias=bias)
        self.kv = Linear(d_model, sum(self.parts), bias=bias)

    def project(self, memory: Tensor) -> CrossKeyValues:
        """Project memory (B, S, D) to keys (B, Hkv, S, Dk) and values (B, Hkv, S, Dh)."""
        k, v = self.split(self.kv(memory), self.parts, (self.d_key, self.d_head))
        return CrossKeyValues(self.keys(k), self.values(v))

    def forward(self, x: Tensor, memory: CrossKeyValues, bias: Tensor | None = None) -> Tensor:
        """Attend from x (N, T, D), N = B*K, and return (N, T, D); bias (B, 1, 1, S) or None.

        The beams of a sentence are folded into its query positions, so keys and values are not repeated per beam.
        """
        n, t, d = x.shape
        b = memory.keys.size(0)
        q = self.q(x).view(b, n // b * t, self.n_heads, self.d_key).transpose(1, 2)  # (B, H, K*T, Dk)
        return self.join(self._attend(self.queries(q), memory.keys, memory.values, bias)).view(n, t, d)
