"""What every validation needs: the mean loss, and a model with other weights for a while."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dragoman.data.batching import Batch
from dragoman.models.model_folder import unique_tensors
from dragoman.models.seq2seq import Network
from dragoman.training.loss import TokenLoss

__all__ = ["mean_loss", "swapped_weights"]


@contextmanager
def swapped_weights(model: Network, weights: Mapping[str, Tensor] | None) -> Generator[None, None, None]:
    """The model with other weights (a moving average, for example) for a while; None = its own."""
    if weights is None:
        yield
        return
    own = {name: p.clone() for name, p in unique_tensors(model).items()}
    _put(model, weights)
    try:
        yield
    finally:
        _put(model, own)


def _put(model: Network, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in unique_tensors(model).items():
        parameter.copy_(weights[name])


def mean_loss(network: Network, batches: Sequence[Batch]) -> dict[str, Any]:
    """valid_loss, in nats a target and not smoothed, and perplexity, of a network in evaluation mode."""
    total, targets = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            batch = batch.to(network.device)
            loss = network(batch.src, batch.src_mask, batch.tgt_in, TokenLoss(batch.tgt_out, 0.0))
            total += float(loss.nll)
            targets += loss.tokens
    mean = total / targets
    return {"valid_loss": mean, "perplexity": math.exp(min(mean, 50.0))}
