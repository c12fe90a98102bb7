"""The C++ kernels of biases, ReLU, and layer normalization with dropout and residual, as functions of tensors.

All of them require kernels and tensors for which `uses_kernels` is true; their twins are the layers of `nn/layers.py`.
Rows of a tensor (..., D) are its vectors of D features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.nn.fast.native.kernels import empty, pointer
from dragoman.nn.fast.native.library import kernels


def sum_rows(x: Tensor) -> Tensor:
    """Return the sums (D,) over the rows of x (..., D)."""
    library = kernels()
    assert library is not None
    rows, columns = _rows(x)
    sums = torch.empty(columns)
    library.dragoman_sum_rows(torch.get_num_threads(), rows, columns, x.data_ptr(), sums.data_ptr())
    return sums


def add_bias_relu_(x: Tensor, bias: Tensor | None) -> Tensor:
    """Replace x (..., F) of M rows by max(x + bias, 0); bias (F,).  Return the bits (M, F / 16) of what is not 0."""
    library = kernels()
    assert library is not None
    rows, columns = _rows(x)
    if bias is not None:
        _check_vectors(columns, bias)
    positive = _bits(rows, columns)
    library.dragoman_add_bias_relu(
        torch.get_num_threads(), rows, columns, pointer(bias), x.data_ptr(), positive.data_ptr()
    )
    return positive


def relu_backward_(grad: Tensor, positive: Tensor) -> Tensor:
    """Set grad (..., F) to 0 where a bit of `add_bias_relu_` is 0, and return its sums (F,) over the rows."""
    library = kernels()
    assert library is not None
    rows, columns = _rows(grad)
    _check_bits(rows, columns, positive)
    sums = torch.empty(columns)
    library.dragoman_relu_backward(
        torch.get_num_threads(), rows, columns, positive.data_ptr(), grad.data_ptr(), sums.data_ptr()
    )
    return sums


def add_and_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, dropout: tuple[Tensor, int, float] | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the layer norm (..., D) of residual + dropout(x), and for the backward pass 1 / standard deviation (M,)
    and the bits (M, D / 16) of the elements that dropout has kept, or None.

    x, residual (..., D) of M rows, weight, bias (D,), dropout: random bytes of the shape of x, threshold and scale, as
    for `drop`.
    """
    library = kernels()
    assert library is not None
    rows, columns = _rows(x, residual)
    _check_vectors(columns, weight, bias)
    random, threshold, scale = dropout or (None, 0, 1.0)
    if random is not None and (random.shape != x.shape or random.dtype != torch.uint8 or not random.is_contiguous()):
        raise ValueError(f"random: {tuple(random.shape)} {random.dtype}; accepted: {tuple(x.shape)} uint8, contiguous")
    out, inverse = empty(*x.shape), torch.empty(rows)
    kept = None if random is None else _bits(rows, columns)
    library.dragoman_add_and_norm(
        torch.get_num_threads(), rows, columns, threshold, scale, pointer(random), x.data_ptr(), residual.data_ptr(),
        weight.data_ptr(), bias.data_ptr(), eps, pointer(kept), inverse.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out, inverse, kept


def add_and_norm_backward(
    grad: Tensor, out: Tensor, weight: Tensor, bias: Tensor, inverse: Tensor, kept: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, residual, weight and bias of `add_and_norm`; grad (..., D): that of its result `out`.

    No weight may be 0, because the input of the norm is computed from its result.
    """
    library = kernels()
    assert library is not None
    rows, columns = _rows(grad, out)
    _check_vectors(columns, weight, bias)
    _check_vectors(rows, inverse)
    if kept is not None:
        _check_bits(rows, columns, kept)
    grad_residual, sums = empty(*out.shape), torch.empty(2, columns)
    grad_x = grad_residual if kept is None else empty(*out.shape)
    library.dragoman_add_and_norm_backward(
        torch.get_num_threads(), rows, columns, scale, pointer(kept), out.data_ptr(), weight.data_ptr(),
        bias.data_ptr(), inverse.data_ptr(), grad.data_ptr(), grad_residual.data_ptr(), grad_x.data_ptr(),
        sums.data_ptr(),
    )  # fmt: skip
    return grad_x, grad_residual, sums[0], sums[1]


def _rows(*tensors: Tensor) -> tuple[int, int]:
    """Return the numbers of rows and columns; raise ValueError unless the kernels can read and write all tensors."""
    shape = tensors[0].shape
    if not all(x.shape == shape and x.is_contiguous() and x.dtype == torch.float32 for x in tensors):
        found = [(tuple(x.shape), x.stride(), x.dtype) for x in tensors]
        raise ValueError(f"tensors: {found}; accepted: equal shapes, contiguous, float32")
    return shape[:-1].numel(), shape[-1]


def _check_vectors(size: int, *vectors: Tensor) -> None:
    if not all(x.shape == (size,) and x.is_contiguous() and x.dtype == torch.float32 for x in vectors):
        found = [(tuple(x.shape), x.stride(), x.dtype) for x in vectors]
        raise ValueError(f"vectors: {found}; accepted: {size} contiguous elements, float32")


def _bits(rows: int, columns: int) -> Tensor:
    """Return an empty tensor for a bit per element of a matrix, 16 of a row in each word."""
    return torch.empty(rows, (columns + 15) // 16, dtype=torch.int16)


def _check_bits(rows: int, columns: int, bits: Tensor) -> None:
    shape = rows, (columns + 15) // 16
    if bits.shape != shape or bits.dtype != torch.int16 or not bits.is_contiguous():
        raise ValueError(f"bits: {tuple(bits.shape)} {bits.dtype}; accepted: {shape} int16, contiguous")
