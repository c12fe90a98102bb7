"""Scores of a network on held-out batches, and temporary replacement of the weights of a model."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.config import TrainConfig
from dragoman.data.batching import Batch
from dragoman.errors import UsageError
from dragoman.models.model_folder import unique_tensors
from dragoman.models.seq2seq import Network, evaluating
from dragoman.registry import is_lower_better
from dragoman.training.loss import TokenLoss, counted_rows, cross_entropy


def metric_value(config: TrainConfig, scores: Mapping[str, Any]) -> float:
    """Return the value of train.metric, negated if lower is better."""
    if config.metric == "loss":
        return -float(scores["valid_loss"])
    return float(scores[config.metric]) * (-1 if is_lower_better(config.metric) else 1)


@contextmanager
def swapped_weights(model: Network, weights: Mapping[str, Tensor] | None) -> Generator[None, None, None]:
    """Replace the weights of the model (e.g. by a moving average) and restore them afterwards; None: no change."""
    if weights is None:
        yield
        return
    own = {name: p.clone() for name, p in unique_tensors(model).items()}
    _copy_into(model, weights)
    try:
        yield
    finally:
        _copy_into(model, own)


def _copy_into(model: Network, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in unique_tensors(model).items():
        parameter.copy_(weights[name])


def mean_loss(network: Network, batches: Iterable[Batch]) -> float:
    """Return the negative log-likelihood in nats per target token, computed by teacher forcing in evaluation mode.

    The end of a sentence counts as a token; labels are not smoothed.  Raises UsageError if no target counts.
    """
    nll, tokens = 0.0, 0
    with evaluating(network), torch.no_grad():
        for batch in batches:
            batch = batch.to(network.device)
            loss = network(batch.src, batch.src_mask, batch.tgt_in, TokenLoss(batch.tgt_out, 0.0))
            nll, tokens = nll + float(loss.nll), tokens + loss.tokens
    if not tokens:
        raise UsageError("no target tokens to score; give at least one line with a target")
    return nll / tokens


def loss_scores(network: Network, batches: Iterable[Batch]) -> dict[str, float]:
    """Return `valid_loss` (nats per target token, not smoothed) and `perplexity`."""
    loss = mean_loss(network, batches)
    return {"valid_loss": loss, "perplexity": math.exp(min(loss, 50.0))}


def label_scores(network: Network, batches: Iterable[Batch]) -> dict[str, float]:
    """Return `valid_loss` (nats per label, not smoothed) and `accuracy` (percent of the labels)."""
    nll, correct, count = 0.0, 0, 0
    with evaluating(network), torch.no_grad():
        for batch in batches:
            batch = batch.to(network.device)
            found = network(batch.src, batch.src_mask, batch.tgt_in, AccuracyHead(batch.tgt_out))
            nll, correct, count = nll + found[0], correct + found[1], count + found[2]
    return {"valid_loss": nll / count, "accuracy": 100 * correct / count}


class AccuracyHead:
    """A `models.seq2seq.Head` that returns the loss in nats, the number of correct labels and the number of labels."""

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets  # (B, T), PAD where nothing counts

    def __call__(self, hidden: Tensor, output: nn.Module) -> tuple[float, int, int]:
        rows, targets = counted_rows(hidden, self.targets)
        logits = output(rows)  # (M, V)
        _, nll = cross_entropy(logits, targets, 0.0)
        best = logits[:, 1:].argmax(-1) + 1  # PAD is not a label
        return float(nll), int((best == targets).sum()), targets.numel()
