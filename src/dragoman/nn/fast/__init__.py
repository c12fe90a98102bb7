"""Everything that is only faster than the formulas of `nn/attention.py` and `nn/layers.py`; this file is where each
call is dispatched.

A function returns what its formula returns, up to rounding.  Which implementation runs depends on the device, the
dtype, the sizes, whether a gradient is needed, and the processor (`native/library.py`), never on a measurement.  Where
a gradient is needed, the C++ kernels in `native/` compute float32 on a CPU for which they were built (`uses_kernels`);
the Triton kernels in `cuda/` run on GPUs (`uses_triton`).  `functions.py` has the implementations in PyTorch and the
gradients of the C++ kernels, `dropout.py` inexpensive random numbers.

Shapes: N rows, H heads, Hkv key-value heads, Tq/Tk query/key positions, D d_model, Dk key size, Dh head size.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.fast import functions
from dragoman.nn.fast.cuda import layers as gpu
from dragoman.nn.fast.cuda.layers import uses_triton
from dragoman.nn.fast.dropout import Dropout
from dragoman.nn.fast.native.kernels import drop, uses_kernels

__all__ = ["Dropout", "Linear", "add_and_norm", "attend", "attend_short", "in_product_dtype", "layer_norm", "linear",
           "relu_network", "rms_norm", "split_heads"]  # fmt: skip

_SHORT = 128 * 128
"""Scores per head up to which writing them out is as fast as the fused kernel (bench/attention.py, commit a1d07576)."""
_SMALLEST = 1e-4
"""Weight of a layer norm below which its result does not determine its input."""


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


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool = False) -> Tensor:
    """Return the outputs (N, H, Tq, Dh) of `nn.attention.attend_explicit` without its weights.

    q (N, H, Tq, Dk), k (N, Hkv, Tk, Dk), v (N, Hkv, Tk, Dh).  bias: broadcastable to (N, H, Tq, Tk), without gradient,
    or None.  causal: mask the later of Tq = Tk positions in addition.
    """
    if gpu.can_attend(q, k, v, bias):
        return gpu.attend(q, k, v, bias, causal)
    is_short = q.device.type == "cpu" and q.size(2) * k.size(2) <= _SHORT
    if causal and (is_short or bias is not None):
        later = q.new_full((q.size(2), q.size(2)), -math.inf).triu_(1)
        bias, causal = later if bias is None else later + bias, False
    if is_short:
        with torch.autocast("cpu", enabled=False):
            dtype = torch.promote_types(q.dtype, torch.float32)
            bias = None if bias is None else bias.to(dtype)
            return attend_short(q.to(dtype), k.to(dtype), v.to(dtype), bias).to(q.dtype)
    if k.size(1) != q.size(1):
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    with _WITHOUT_CUDNN if q.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)


def attend_short(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Return the outputs of `attend` by batched products, the fastest on a CPU for sequences as short as sentences."""
    needs_gradient = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if needs_gradient and q.numel() and v.numel() and uses_kernels(q, k, v, bias):
        return functions.KernelAttention.apply(q, k, v, bias)  # type: ignore[no-any-return, no-untyped-call]
    return functions.ShortAttention.apply(q, k, v, bias)  # type: ignore[no-any-return, no-untyped-call]


def split_heads(x: Tensor, parts: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Split x (N, T, sum of parts) into parts, and each part into heads (N, part / size, T, size)."""
    if torch.is_grad_enabled() and x.requires_grad and (uses_triton(x) or uses_kernels(x)):
        return functions.SplitHeads.apply(x, parts, sizes)  # type: ignore[no-any-return, no-untyped-call]
    return functions.split_heads(x, parts, sizes)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + bias like `torch.nn.functional.linear`; x (..., in), weight (out, in), bias (out,).

    The kernels are used where a gradient is needed: on a CPU they prepare the matrices for many rows, on a GPU they add
    the gradient of the bias.
    """
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if needs_gradient and bias is not None and uses_triton(x, weight):
        return gpu.linear(x, weight, bias)
    if needs_gradient and uses_kernels(x, weight) and not torch.is_autocast_enabled("cpu"):
        return functions.LinearLayer.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """`torch.nn.Linear` with the products of `linear`."""

    __call__: Callable[..., Tensor]

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def relu_network(x: Tensor, inner: nn.Module, outer: nn.Module) -> Tensor | None:
    """Return outer(relu(inner(x))), x (..., D), or None where the formula is as fast or a layer has an adapter."""
    if type(inner) is not Linear or type(outer) is not Linear:
        return None
    if torch.is_grad_enabled() and uses_triton(x, inner.weight):
        return gpu.relu_network(x, inner.weight, inner.bias, outer.weight, outer.bias)
    if not _can_fuse(x, inner.weight, outer.weight):
        return None
    return functions.ReluNetwork.apply(x, inner.weight, inner.bias, outer.weight, outer.bias)  # type: ignore[no-any-return, no-untyped-call]


def add_and_norm(
    x: Tensor, residual: Tensor, norm: nn.LayerNorm, dropout: Dropout, observe: Callable[[Tensor], object] | None
) -> Tensor | None:
    """Return the layer norm of residual + dropout(x), (..., D), or None where the formula is as fast.

    observe: called with the sum, for what is recorded; None = not needed.
    """
    weight, bias = norm.weight, norm.bias
    if observe is None and gpu.can_add_and_norm(x):
        return gpu.add_and_norm(x, residual, dropout.rate, (weight, bias, norm.eps))
    if not _can_fuse(x, residual, weight, bias) or not _determines_input(x, weight, bias):
        return None
    drawn = dropout.draw(x.shape)
    if observe is not None:
        with torch.no_grad():
            observe(residual + x if drawn is None else drop(*drawn, x, residual))
    return functions.AddAndNorm.apply(x, residual, weight, bias, norm.eps, drawn)  # type: ignore[no-any-return, no-untyped-call]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias over the features of x (..., D)."""
    if gpu.can_add_and_norm(x):
        return gpu.add_and_norm(x, None, 0.0, (weight, bias, eps))
    if _determines_input(x, weight, bias):
        return functions.LayerNormFromResult.apply(x, weight, bias, eps)  # type: ignore[no-any-return, no-untyped-call]
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the features of x (..., D)."""
    if gpu.can_add_and_norm(x):
        return gpu.add_and_norm(x, None, 0.0, (weight, None, eps), centered=False)
    x = x.to(torch.promote_types(x.dtype, weight.dtype))  # an output of a product under autocast has 16 bits
    if x.device.type == "cpu":  # F.rms_norm is a chain of small operations there, at half the speed
        return functions.RMSNormalize.apply(x, weight, eps)  # type: ignore[no-any-return, no-untyped-call]
    return F.rms_norm(x, weight.shape, weight, eps)


def in_product_dtype(x: Tensor) -> Tensor:
    """Return the states of a stack on a GPU in the dtype of products under autocast.

    Then no layer converts them; the kernels add and normalize in float32.
    """
    if not x.is_cuda or not torch.is_autocast_enabled("cuda") or not uses_triton(x):
        return x
    return x.to(torch.get_autocast_dtype("cuda"))


def _can_fuse(x: Tensor, *others: Tensor) -> bool:
    """Return whether a kernel computes several layers at once, for the gradient of x."""
    needs_gradient = torch.is_grad_enabled() and x.requires_grad and x.numel() > 0
    return needs_gradient and uses_kernels(x, *others) and not torch.is_autocast_enabled("cpu")


def _determines_input(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Return whether a layer norm of x needs a gradient, and (out - bias) / weight is accurate.

    It is if no bias is large beside its weight.
    """
    if x.device.type != "cpu" or x.dtype != weight.dtype or not (torch.is_grad_enabled() and x.requires_grad):
        return False
    size = weight.detach().abs()
    return bool(((bias.detach().abs() <= 2 * size) & (size > _SMALLEST)).all())
