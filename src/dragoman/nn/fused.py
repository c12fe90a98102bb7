"""Parts of a layer whose forward and backward passes are computed by the C++ kernels of `nn/native` in few passes.

The layers of `nn/layers.py` use them in training where no tap needs what they skip, and are their twins in PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from dragoman.nn.native import layer_kernels
from dragoman.nn.native.kernels import multiply, uses_kernels
from dragoman.nn.native.layer_kernels import add_bias_relu_, relu_backward_, sum_rows
from dragoman.nn.products import Linear

__all__ = ["add_and_norm", "can_fuse", "relu_network"]


def can_fuse(*tensors: Tensor) -> bool:
    """Return whether the kernels are used for tensors, the first of which may need a gradient."""
    needs_gradient = torch.is_grad_enabled() and tensors[0].requires_grad
    return needs_gradient and uses_kernels(*tensors) and not torch.is_autocast_enabled("cpu")


class _ReluNetwork(torch.autograd.Function):
    """Stores max(x W1 + b1, 0), in whose memory the backward pass computes its gradient, and which bits are not 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> Tensor:
        hidden = multiply(x.reshape(-1, x.size(-1)), w1.t())
        positive = add_bias_relu_(hidden, b1)
        ctx.save_for_backward(x, hidden, positive, w1, w2)
        return multiply(hidden, w2.t(), b2).view(*x.shape[:-1], w2.size(0))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, positive, w1, w2 = ctx.saved_tensors
        rows, grad = x.reshape(-1, x.size(-1)), grads[0].reshape(-1, w2.size(0)).contiguous()
        needs_x, needs_w1, needs_b1, needs_w2, needs_b2 = ctx.needs_input_grad
        grad_w2 = multiply(grad.t(), hidden) if needs_w2 else None
        # A second matrix of this size would not fit between the gradients of weights that earlier layers have left.
        grad_hidden = multiply(grad, w2, out=hidden)
        increment_version(hidden)  # PyTorch then refuses a second backward pass
        grad_b1 = relu_backward_(grad_hidden, positive)
        return (
            multiply(grad_hidden, w1).view_as(x) if needs_x else None,
            multiply(grad_hidden.t(), rows) if needs_w1 else None,
            grad_b1 if needs_b1 else None,
            grad_w2,
            sum_rows(grad) if needs_b2 else None,
        )


def relu_network(x: Tensor, inner: Linear, outer: Linear) -> Tensor:
    """Return outer(relu(inner(x))); x (..., D) with `can_fuse`."""
    return _ReluNetwork.apply(x, inner.weight, inner.bias, outer.weight, outer.bias)  # type: ignore[no-any-return, no-untyped-call]


class _AddAndNorm(torch.autograd.Function):
    """Stores the result, which the next layer stores anyway, and a bit per element that dropout has kept."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, dropout: Any
    ) -> Tensor:
        out, inverse, kept = layer_kernels.add_and_norm(
            x.contiguous(), residual.contiguous(), weight, bias, eps, dropout
        )
        ctx.save_for_backward(out, weight, bias, inverse, kept)
        ctx.scale = 1.0 if dropout is None else dropout[2]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        out, weight, bias, inverse, kept = ctx.saved_tensors
        found = layer_kernels.add_and_norm_backward(grads[0].contiguous(), out, weight, bias, inverse, kept, ctx.scale)
        return (*found, None, None)


def add_and_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, dropout: tuple[Tensor, int, float] | None
) -> Tensor:
    """Return the layer norm of residual + dropout(x), all (..., D) with `can_fuse`; no weight may be 0.

    dropout: random bytes (..., D), threshold and scale, as returned by `nn.dropout.Dropout.draw`.
    """
    return _AddAndNorm.apply(x, residual, weight, bias, eps, dropout)  # type: ignore[no-any-return, no-untyped-call]
