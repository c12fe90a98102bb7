"""Attention of short sequences on a GPU: all queries and keys of a head in one block, forward and backward.

Shapes: N rows, H heads, Hkv key-value heads, Tq/Tk query/key positions, Dk size of queries and keys, Dh of values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman.nn.fast.cuda.launch import kernels, power_of_two, uses_triton

_LONGEST = 64
"""Positions up to which a block holds all queries or keys; from 128 on, PyTorch's kernel is faster (bench/gpu.py)."""
_WIDEST = 128


def can_attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> bool:
    """Return whether `attend` computes the attention of these tensors; the bias receives no gradient."""
    if (
        not uses_triton(q, k, v)
        or q.dtype != k.dtype
        or q.dtype != v.dtype
        or (bias is not None and bias.requires_grad)
    ):
        return False
    return max(q.size(2), k.size(2)) <= _LONGEST and max(q.size(3), v.size(3)) <= _WIDEST


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    """Return softmax(q k^T / sqrt(Dk) + bias) v, (N, H, Tq, Dh), for `can_attend`.

    q (N, H, Tq, Dk), k (N, Hkv, Tk, Dk), v (N, Hkv, Tk, Dh), bias broadcastable to (N, H, Tq, Tk).
    causal: query i attends to keys up to i.
    """
    return _Attention.apply(q, k, v, bias, causal)  # type: ignore[no-any-return, no-untyped-call]


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for x in tensors for stride in x.stride()[:3]]


def _with_features(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
        q, k, v = map(_with_features, (q, k, v))
        n, h, tq, _ = q.shape
        # In the layout in which the output projection reads it.
        out = q.new_empty(n, tq, h, v.size(3)).transpose(1, 2)  # (N, H, Tq, Dh)
        lse = q.new_empty(n, h, tq, dtype=torch.float32)
        expanded = None if bias is None else bias.expand(n, h, tq, k.size(2))
        kernels().attention_forward[(n * h,)](
            q, k, v, q if bias is None else bias, out, lse, *_strides(q, k, v), *_bias_strides(expanded),
            *_strides(out), h, *_sizes(q, k), int(causal), int(bias is not None), **_options(q, k, v),
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, bias, lse)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, bias, lse = ctx.saved_tensors
        n, h, tq, _ = q.shape
        expanded = None if bias is None else bias.expand(n, h, tq, k.size(2))
        grad = _with_features(grads[0])
        # The parts of one matrix get their gradients in one matrix, so that nothing puts them together.
        is_self = q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
        dq, dk, dv = _like_packed((q, k, v)) if is_self else (*_like_packed((q,)), *_like_packed((k, v)))
        kernels().attention_backward[(n * k.size(1),)](
            q, k, v, q if bias is None else bias, lse, grad, dq, dk, dv, *_strides(q, k, v), *_bias_strides(expanded),
            *_strides(grad, dq, dk, dv), k.size(1), *_sizes(q, k), int(ctx.causal), int(bias is not None),
            **_options(q, k, v),
        )  # fmt: skip
        return dq, dk, dv, None, None


def _like_packed(parts: Sequence[Tensor]) -> list[Tensor]:
    """Return empty tensors of these shapes (N, H, T, D) in one matrix (N, T, ...), as `MultiHead.split` has them."""
    n, _, t, _ = parts[0].shape
    widths = [x.size(1) * x.size(3) for x in parts]
    matrix = parts[0].new_empty(n, t, sum(widths))
    columns = matrix.split(widths, 2)
    return [c.view(n, t, x.size(1), x.size(3)).transpose(1, 2) for c, x in zip(columns, parts, strict=True)]


def _bias_strides(bias: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0, 0) if bias is None else bias.stride()


def _sizes(q: Tensor, k: Tensor) -> tuple[int, int, float]:
    return q.size(2), k.size(2), 1 / math.sqrt(q.size(3))


def _options(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
    # One size of both blocks: a kernel is compiled for every pair of sizes, which takes longer than the difference.
    block = power_of_two(max(q.size(2), k.size(2)))
    return {
        "GROUP": q.size(1) // k.size(1), "DK": q.size(3), "DV": v.size(3), "BLOCK_Q": block, "BLOCK_K": block,
        "BLOCK_DK": power_of_two(q.size(3)), "BLOCK_DV": power_of_two(v.size(3)),
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32", "num_warps": {16: 1, 32: 2, 64: 4}[block],
        "num_stages": 1,
    }  # fmt: skip
