"""Validation scores of labels."""

from __future__ import annotations

import pytest
import torch

from dragoman.config import EncoderOnlyConfig
from dragoman.data.batching import Batch, collate_source
from dragoman.models.build import build_model
from dragoman.training.loss import AccuracyHead, label_scores, mean_loss


def test_label_scores_are_means_over_labels() -> None:
    network = build_model(EncoderOnlyConfig(d_model=8, d_ff=12, n_heads=2, n_layers=1), 9, 5).eval()
    batches = []
    for rows, labels in (([[4, 5, 3], [6, 3]], [[1, 2, 0], [4, 0, 0]]), ([[7, 3]], [[3, 0]])):
        src, mask = collate_source(rows)
        targets = torch.tensor(labels)
        batches.append(
            Batch(src, mask, targets.new_zeros(len(rows), 0), targets, src.numel(), int((targets != 0).sum()))
        )
    scores = label_scores(network, batches)
    assert scores["valid_loss"] == pytest.approx(mean_loss(network, batches), rel=1e-6)
    correct = 0
    for batch in batches:
        logits = network(batch.src, batch.src_mask, batch.tgt_in)
        correct += int((logits[..., 1:].argmax(-1) + 1 == batch.tgt_out).sum())
    assert scores["accuracy"] == pytest.approx(100 * correct / 4)


def test_padding_is_not_a_predicted_label() -> None:
    logits = torch.tensor([[[9.0, 1.0, 2.0], [9.0, 2.0, 1.0]]])
    _, correct, labels = AccuracyHead(torch.tensor([[2, 2]]))(logits, torch.nn.Identity())
    assert (correct, labels) == (1, 2)
