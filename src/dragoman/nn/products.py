"""Linear layers whose forward and backward pass may use the C++ kernels of `nn/native`, or the memory as they do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.native.kernels import multiply, uses_kernels
from dragoman.nn.native.layer_kernels import sum_rows

__all__ = ["Linear", "linear"]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x.reshape(-1, x.size(-1)), weight.t(), bias).view(*x.shape[:-1], weight.size(0))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows, grad = x.reshape(-1, x.size(-1)), grads[0].reshape(-1, weight.size(0))
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            multiply(grad, weight).view_as(x) if needs_x else None,
            multiply(grad.t(), rows) if needs_weight else None,
            sum_rows(grad.contiguous()) if needs_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + bias like `torch.nn.functional.linear`; x (..., in), weight (out, in), bias (out,).

    The kernels are used where a gradient is needed, because they prepare the matrices for many rows.
    """
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if not needs_gradient or not uses_kernels(x, weight) or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


class Linear(nn.Linear):
    """`torch.nn.Linear` with the products of this file."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
