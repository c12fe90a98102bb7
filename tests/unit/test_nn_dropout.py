"""Dropout: rate, scale, gradient, and the random numbers it is made from."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from dragoman.nn.attention import SelfAttention
from dragoman.nn.fast.dropout import Dropout, repeated_dropout, seed_dropout
from dragoman.nn.positions import Positions

SIZE = 999_983  # not a multiple of 8: the last random word is used partially


@pytest.mark.parametrize(("p", "threshold"), [(0.1, 26), (0.3, 77), (0.5, 128), (0.001, 1), (0.999, 255)])
def test_rate_and_scale_are_those_of_the_rounded_rate(p: float, threshold: int) -> None:
    dropped = Dropout(p)(torch.ones(SIZE))
    rate, scale = threshold / 256, 256 / (256 - threshold)
    assert torch.unique(dropped).tolist() == pytest.approx([0.0, scale], rel=1e-6)
    deviation = math.sqrt(rate * (1 - rate) / SIZE)
    assert abs(float((dropped == 0).double().mean()) - rate) < 5 * deviation
    assert abs(float(dropped.double().mean()) - 1) < 5 * deviation * scale  # the mean is kept


def test_every_position_is_drawn_equally_often() -> None:
    dropped = Dropout(0.25)(torch.ones(40_000, 16))
    by_place = (dropped == 0).double().mean(0)
    assert (by_place - 0.25).abs().max() < 5 * math.sqrt(0.25 * 0.75 / 40_000)
    zero = (dropped == 0).double() - 0.25
    neighbours = (zero[:, 1:] * zero[:, :-1]).mean() / (0.25 * 0.75)
    assert abs(float(neighbours)) < 5 / math.sqrt(40_000 * 15)


@pytest.mark.parametrize("with_residual", [False, True])
def test_gradient_mask_is_the_forward_mask(with_residual: bool) -> None:
    x = torch.randn(5, 7, 9, requires_grad=True)
    residual = torch.randn(5, 7, 9, requires_grad=True) if with_residual else None
    out = Dropout(0.4)(x, residual)
    passed = out.detach() - residual.detach() if residual is not None else out.detach()
    scale = 256 / (256 - 102)
    kept = passed.abs() > 1e-7
    assert 0.3 < float(kept.double().mean()) < 0.9
    torch.testing.assert_close(passed[kept], x.detach()[kept] * scale, rtol=1e-3, atol=1e-6)
    upstream = torch.randn(5, 7, 9)
    out.backward(upstream)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, upstream * kept * scale)
    if residual is not None:
        assert residual.grad is not None and torch.equal(residual.grad, upstream)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_seed_drops_the_same_places(dtype: torch.dtype) -> None:
    dropout, x = Dropout(0.2), torch.ones(6, 33, dtype=dtype)
    outs = []
    for key in [(1, 5), (1, 6), (2, 5), (1, 5)]:
        seed_dropout(*key)
        outs.append(torch.stack([dropout(x), dropout(x)]))
    assert torch.equal(outs[0], outs[3])
    assert not torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    assert not torch.equal(outs[0][0], outs[0][1])


def test_seed_reaches_torchs_own_numbers() -> None:
    seed_dropout(4, 2)
    first = torch.rand(3)
    seed_dropout(4, 2)
    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.3, False), (0.0, False)])
def test_identity_when_nothing_is_dropped(p: float, training: bool) -> None:
    dropout, x, residual = Dropout(p).train(training), torch.randn(3, 5), torch.randn(3, 5)
    assert dropout(x) is x
    assert torch.equal(dropout(x, residual), residual + x)


DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of_residual", DTYPES)
def test_the_sum_has_the_type_of_the_residual(dtype: torch.dtype, of_residual: torch.dtype) -> None:
    dropout, x = Dropout(0.1).train(), torch.ones(2, 8, dtype=dtype)
    assert dropout(x).dtype == dtype and dropout(x, x.to(of_residual)).dtype == of_residual


def test_a_checkpoint_draws_the_same_places_again() -> None:
    dropout, x = Dropout(0.5).train(), torch.ones(64, requires_grad=True)
    out = checkpoint(lambda y: dropout(y) * y, x, use_reentrant=False, context_fn=repeated_dropout)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, 2 * out.detach()) and 0 < int((gradient == 0).sum()) < 64


def test_double_precision_keeps_rate_scale_and_residual() -> None:
    residual = torch.full((50_000,), 3.0, dtype=torch.float64)
    out = Dropout(0.1)(torch.ones(50_000, dtype=torch.float64), residual) - residual
    assert torch.unique(out.round(decimals=9)).tolist() == pytest.approx([0.0, 1 / 0.9], rel=1e-8)
    assert abs(float((out == 0).double().mean()) - 0.1) < 5 * math.sqrt(0.09 / 50_000)


def test_attention_weights_are_dropped_while_training_only() -> None:
    attention = SelfAttention(8, 2, dropout=0.5)
    x = torch.randn(3, 5, 8)
    kept = attention.eval()(x, Positions(), torch.arange(5))
    assert torch.equal(attention(x, Positions(), torch.arange(5)), kept)
    seed_dropout(1)
    assert not torch.allclose(attention.train()(x, Positions(), torch.arange(5)), kept)
