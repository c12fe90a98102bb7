"""The C++ kernels as functions of tensors, each with a twin in PyTorch that runs where they are not used.

The kernels sum each element in an order that depends neither on the number of threads nor on the other rows.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from dragoman.nn.native.library import kernels

__all__ = ["multiply", "smoothed_loss_", "uses_kernels"]

_Strides = ctypes.c_int64 * 5
_Sizes = ctypes.c_int64 * 3


def uses_kernels(*tensors: Tensor) -> bool:
    """Return whether `multiply` computes products of these tensors with the C++ kernels."""
    return all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors) and kernels() is not None


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None, add: bool = False) -> Tensor:
    """Return a @ b + bias; a (m, k), b (k, n), bias (n,).

    out: receives the result, if given; its rows must be contiguous.  add: add the product to `out` instead.
    """
    library = kernels() if uses_kernels(a, b) else None
    if library is None or not (a.numel() and b.numel()):
        return _multiply(a, b, bias, out, add)
    a, b = _with_unit_stride(a), _with_unit_stride(b)
    if out is None:
        out = torch.empty(a.size(0), b.size(1))
    if bias is not None:
        bias = bias.contiguous()
    _check(a, b, bias, out)
    library.dragoman_multiply(
        torch.get_num_threads(), _Sizes(a.size(0), b.size(1), a.size(1)),
        _Strides(*a.stride(), *b.stride(), out.stride(0)), a.data_ptr(), b.data_ptr(),
        None if bias is None else bias.data_ptr(), add, out.data_ptr(),
    )  # fmt: skip
    return out


def _multiply(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor | None, add: bool) -> Tensor:
    """`multiply` with PyTorch."""
    if add:
        assert out is not None
        out.addmm_(a, b)
        return out if bias is None else out.add_(bias)
    return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)


def _with_unit_stride(x: Tensor) -> Tensor:
    """Return a matrix whose rows or columns are contiguous."""
    return x if 1 in x.stride() else x.contiguous()


def _check(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Raise ValueError if the kernel would read or write outside of a tensor."""
    shape = (a.size(0), b.size(1))
    fits = a.size(1) == b.size(0) and out.shape == shape and (bias is None or bias.shape == shape[1:])
    dtypes = {x.dtype for x in (out, bias) if x is not None} == {torch.float32}
    if not fits or not dtypes or (out.stride(1) != 1 and shape[1] > 1):
        shapes = [None if x is None else (tuple(x.shape), x.dtype) for x in (a, b, bias, out)]
        raise ValueError(f"a, b, bias, out: {shapes}; accepted: (m, k), (k, n), (n,), (m, n) with contiguous rows")


def smoothed_loss_(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Replace logits (M, V) by the gradient of the label-smoothed loss; return this loss and the NLL, summed over rows.

    targets: (M, 1), int64.  Requires kernels.
    """
    library = kernels()
    assert library is not None
    rows, vocab = logits.shape
    targets = targets.contiguous()
    if targets.shape != (rows, 1) or targets.dtype != torch.int64 or not logits.is_contiguous():
        raise ValueError(f"targets: {tuple(targets.shape)} {targets.dtype}; accepted: ({rows}, 1) int64")
    low, high = (int(x) for x in targets.aminmax())
    if low < 0 or high >= vocab:
        raise IndexError(f"targets from {low} to {high}; accepted: 0 to {vocab - 1}")
    sums = torch.zeros(2, dtype=torch.float64)
    library.dragoman_smoothed_loss(
        torch.get_num_threads(), rows, vocab, logits.data_ptr(), targets.data_ptr(), smoothing, sums.data_ptr()
    )
    return sums[0].float(), sums[1].float()
