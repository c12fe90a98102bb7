"""The gradient of the label-smoothed cross-entropy in the memory of the logits, without logits in float32.

Shapes: M target positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.nn.fast.cuda.launch import kernels, power_of_two, uses_triton

_BLOCK = 4096


def can_compute_loss(logits: Tensor) -> bool:
    """Return whether `loss_gradient_` reads these logits."""
    return uses_triton(logits) and logits.stride(-1) == 1


def loss_gradient_(
    logits: Tensor, targets: Tensor, smoothing: float, pad: int, gradient: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the sums over all rows of the smoothed loss and of the negative log-likelihood, in float32.

    logits (M, V): become the gradient of the smoothed loss unless `gradient` is false.  targets (M,): rows whose target
    is `pad` count as 0.
    """
    smoothed, nll = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
    vocab = logits.size(1)
    kernels().loss_forward[(len(logits),)](
        logits, targets, smoothed, nll, logits.stride(0), smoothing, pad,
        VOCAB=vocab, BLOCK=min(_BLOCK, power_of_two(vocab)), GRADIENT=gradient, num_warps=8 if vocab > 2048 else 4,
    )  # fmt: skip
    return smoothed.sum(), nll.sum()
