"""norm(residual + dropout(x)) in one pass on a GPU, forward and backward; each of the three may be left out.

Shapes: M rows of D features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.nn.fast.cuda.launch import kernels, power_of_two, uses_triton

_WIDEST = 8192
_PARTIAL_SUMS = 1024
"""Blocks of a backward pass; each adds the gradients of the norm's weights over its rows, and PyTorch adds the sums."""
_NO_NORM, _LAYER, _RMS = 0, 1, 2

_seeds: dict[torch.device, Tensor] = {}
_last_seed = 0
_calls = 0
"""Number of the next call with dropout in this pass, by which its random numbers differ from those of other calls."""


def seed_rows(seed: int) -> None:
    """Set the seed of the next pass on all devices; outside of a CUDA graph, whose replays read it."""
    global _calls, _last_seed
    _calls, _last_seed = 0, seed
    for tensor in _seeds.values():
        tensor.fill_(seed)


def calls() -> int:
    """Return the number of calls with dropout since `seed_rows`; `set_calls` repeats those after it."""
    return _calls


def set_calls(count: int) -> None:
    global _calls
    _calls = count


def _seed(device: torch.device) -> Tensor:
    found = _seeds.get(device)
    if found is None:
        found = _seeds[device] = torch.full((1,), _last_seed, dtype=torch.int64, device=device)
    return found


@dataclass(frozen=True)
class Norm:
    """LayerNorm, or RMSNorm without a mean (`centred` false)."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    centred: bool


def can_add_and_norm(x: Tensor) -> bool:
    """Return whether `add_and_norm` computes the rows of x (..., D)."""
    return uses_triton(x) and 4 <= x.size(-1) <= _WIDEST


def add_and_norm(x: Tensor, residual: Tensor | None, dropout: float, norm: Norm | None) -> Tensor:
    """Return norm(residual + dropout(x)), of the dtype of the residual or of x; x and residual (..., D).

    dropout: probability, rounded to a multiple of 1/256; 0 = none.
    """
    global _calls
    call = _calls
    if dropout:
        _calls += 1
    threshold = min(max(round(dropout * 256), 1), 255) if dropout else 0
    weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
    kind = _NO_NORM if norm is None else _LAYER if norm.centred else _RMS
    eps = 0.0 if norm is None else norm.eps
    return _AddAndNorm.apply(x, residual, weight, bias, (call, threshold, kind, eps))  # type: ignore[no-any-return, no-untyped-call]


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, how: Any
    ) -> Tensor:
        call, threshold, kind, eps = how
        x = x.contiguous()
        residual = None if residual is None else residual.contiguous()
        width = x.size(-1)
        rows = x.numel() // width
        like = x if residual is None else residual
        sums = like if residual is None and not threshold else torch.empty_like(like)
        out = sums if kind == _NO_NORM else torch.empty_like(like)
        mean, inverse = (x.new_empty(rows if kind else 1, dtype=torch.float32) for _ in range(2))
        ctx.options = {
            "D": width, "BLOCK": power_of_two(width), "HAS_RESIDUAL": residual is not None, "DROPS": threshold > 0,
            "NORM": kind, "HAS_BIAS": bias is not None, "num_warps": min(8, max(1, width // 256)),
        }  # fmt: skip
        ctx.how = call, threshold, 256 / (256 - threshold)
        kernels().add_and_norm_forward[(rows,)](
            x, x if residual is None else residual, x if weight is None else weight, x if bias is None else bias,
            _seed(x.device), sums, out, mean, inverse, *ctx.how, eps, **ctx.options,
        )  # fmt: skip
        ctx.x_dtype = x.dtype
        ctx.save_for_backward(sums if kind else None, weight, bias, mean, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sums, weight, bias, mean, inverse = ctx.saved_tensors
        options, grad = ctx.options, grads[0].contiguous()
        width, has_residual, drops = options["D"], options["HAS_RESIDUAL"], options["DROPS"]
        rows = grad.numel() // width
        if not options["NORM"] and not drops:
            return grad.to(ctx.x_dtype), grad if has_residual else None, None, None, None
        blocks = min(rows, _PARTIAL_SUMS)
        partial = grad.new_empty(2 if bias is not None else 1, blocks, width, dtype=torch.float32)
        dresidual = torch.empty_like(grad) if has_residual else None
        writes_x = drops or not has_residual
        dx = torch.empty_like(grad, dtype=ctx.x_dtype) if writes_x else None
        kernels().add_and_norm_backward[(blocks,)](
            grad, grad if sums is None else sums, grad if weight is None else weight, _seed(grad.device), mean, inverse,
            grad if dx is None else dx, grad if dresidual is None else dresidual, partial[0], partial[-1],
            rows, *ctx.how, **options,
        )  # fmt: skip
        if dx is None:
            assert dresidual is not None
            dx = dresidual.to(ctx.x_dtype)
        if weight is None:
            return dx, dresidual, None, None, None
        totals = partial.sum(1)
        return dx, dresidual, totals[0], totals[1] if bias is not None else None, None
