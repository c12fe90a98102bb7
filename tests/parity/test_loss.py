"""The loss against torch's, whole and in chunks: values and gradients, in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.data.tokenizer import PAD
from dragoman.training.loss import TokenLoss, chunked_cross_entropy, cross_entropy

M, D, V = 23, 6, 17
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-12}
SMOOTHINGS = [0.0, 0.1, 0.35]


def case() -> tuple[Tensor, Tensor, Tensor]:
    """hidden (M, D), weight (V, D), targets (M,); the same at each call."""
    torch.manual_seed(5)
    hidden = torch.randn(M, D, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
    return hidden, weight, torch.randint(V, (M,))


def gradients(loss: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss * 1.7, of, retain_graph=True)  # 1.7: the upstream gradient counts too


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_cross_entropy_is_torchs(smoothing: float) -> None:
    hidden, weight, targets = case()
    logits = hidden @ weight.T
    smoothed, nll = cross_entropy(logits, targets, smoothing)
    theirs = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(smoothed, theirs, **EXACT)
    torch.testing.assert_close(nll, F.cross_entropy(logits, targets, reduction="sum"), **EXACT)
    for mine, their in zip(gradients(smoothed, hidden, weight), gradients(theirs, hidden, weight), strict=True):
        torch.testing.assert_close(mine, their, **EXACT)


def test_cross_entropy_is_the_distance_to_the_smoothed_distribution() -> None:
    logits, targets, smoothing = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64), torch.tensor([2]), 0.3
    total = math.fsum(math.exp(x) for x in (1.0, -2.0, 0.5))
    log_probs = [x - math.log(total) for x in (1.0, -2.0, 0.5)]
    target = [0.1, 0.1, 0.8]
    want = -math.fsum(t * p for t, p in zip(target, log_probs, strict=True))
    smoothed, nll = cross_entropy(logits, targets, smoothing)
    assert float(smoothed) == pytest.approx(want, abs=1e-12)
    assert float(nll) == pytest.approx(-log_probs[2], abs=1e-12)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("rows", [0, 1, 5, 22, 23, 100])
def test_chunks_of_any_size_are_the_whole(smoothing: float, rows: int) -> None:
    hidden, weight, targets = case()
    smoothed, nll = chunked_cross_entropy(hidden, weight, targets, smoothing, rows)
    want, want_nll = cross_entropy(hidden @ weight.T, targets, smoothing)
    torch.testing.assert_close(smoothed, want, **EXACT)
    torch.testing.assert_close(nll, want_nll, **EXACT)
    for mine, their in zip(gradients(smoothed, hidden, weight), gradients(want, hidden, weight), strict=True):
        torch.testing.assert_close(mine, their, **EXACT)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_chunks_give_the_gradient_that_is_wanted_when_the_other_is_frozen(frozen: str) -> None:
    hidden, weight, targets = case()
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    free = weight if frozen == "hidden" else hidden
    (mine,) = gradients(chunked_cross_entropy(hidden, weight, targets, 0.1, rows=5)[0], free)
    (their,) = gradients(cross_entropy(hidden @ weight.T, targets, 0.1)[0], free)
    torch.testing.assert_close(mine, their, **EXACT)


def test_chunks_without_gradients() -> None:
    hidden, weight, targets = case()
    with torch.no_grad():
        smoothed, _ = chunked_cross_entropy(hidden, weight, targets, 0.1, rows=4)
    torch.testing.assert_close(smoothed, cross_entropy(hidden @ weight.T, targets, 0.1)[0].detach(), **EXACT)


@pytest.mark.parametrize("bias", [False, True], ids=["chunked", "whole"])
def test_token_loss_leaves_padding_out(bias: bool) -> None:
    b, t = 3, 5
    output = nn.Linear(D, V, bias=bias, dtype=torch.float64)
    hidden = torch.randn(b, t, D, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(PAD + 1, V, (b, t))
    targets[0, 2:] = PAD
    targets[2, 4:] = PAD
    loss = TokenLoss(targets, 0.1)(hidden, output)
    assert loss.tokens == 11 and not loss.nll.requires_grad
    theirs = F.cross_entropy(
        output(hidden).flatten(0, 1), targets.flatten(), label_smoothing=0.1, ignore_index=PAD, reduction="sum"
    )
    torch.testing.assert_close(loss.smoothed, theirs, **EXACT)
    (mine,), (their,) = gradients(loss.smoothed, hidden), gradients(theirs, hidden)
    torch.testing.assert_close(mine, their, **EXACT)
    assert not mine[targets == PAD].any() and mine[targets != PAD].any(-1).all()
