"""Numbers computed by hand in texts about the Transformer, reproduced with our code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.nn.attention import AttentionTaps, SelfAttention, attend_explicit
from dragoman.nn.fast import attend_short
from dragoman.nn.layers import FeedForward, SubLayer
from dragoman.nn.positions import Positions
from dragoman.nn.taps import Tap

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}

# Self-attention of three vectors with three given matrices.
INPUTS = [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]]
W_Q = [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]
W_K = [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]]
W_V = [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]]
KEYS = [[0, 1, 1], [4, 4, 0], [2, 3, 1]]
VALUES = [[1, 2, 3], [2, 8, 0], [2, 6, 3]]
QUERIES = [[1, 0, 2], [2, 2, 2], [2, 1, 3]]
SCORES = [[2, 4, 4], [4, 16, 12], [4, 12, 10]]

WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "explicit": lambda q, k, v: attend_explicit(q, k, v, None)[0],
    "short": lambda q, k, v: attend_short(q, k, v, None),
}


def tensor(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def one_head(rows: list[list[int]]) -> Tensor:
    """(1, 1, T, Dh)"""
    return tensor(rows)[None, None]


def formula(divisor: float) -> list[list[float]]:
    """softmax(SCORES / divisor) VALUES in plain Python."""
    outputs = []
    for scores in SCORES:
        powers = [math.exp(score / divisor) for score in scores]
        weights = [power / math.fsum(powers) for power in powers]
        outputs.append([math.fsum(w * row[i] for w, row in zip(weights, VALUES, strict=True)) for i in range(3)])
    return outputs


def test_three_vectors_have_these_queries_keys_values_and_scores() -> None:
    x = tensor(INPUTS)
    for matrix, want in ((W_Q, QUERIES), (W_K, KEYS), (W_V, VALUES)):
        assert torch.equal(x @ tensor(matrix), tensor(want))
    assert torch.equal(tensor(QUERIES) @ tensor(KEYS).T, tensor(SCORES))


@pytest.mark.parametrize("way", WAYS)
def test_three_vectors_scaled(way: str) -> None:
    out = WAYS[way](one_head(QUERIES), one_head(KEYS), one_head(VALUES))[0, 0]
    torch.testing.assert_close(out, torch.tensor(formula(math.sqrt(3)), dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("way", WAYS)
def test_three_vectors_unscaled(way: str) -> None:
    # Multiplying the queries by sqrt(Dh) cancels the division.
    out = WAYS[way](one_head(QUERIES) * math.sqrt(3), one_head(KEYS), one_head(VALUES))[0, 0]
    torch.testing.assert_close(out, torch.tensor(formula(1.0), dtype=torch.float64), **EXACT)


def test_three_vectors_with_the_sources_rounded_weights() -> None:
    """The source rounds the first query's weights to [0.0, 0.5, 0.5] and obtains [2.0, 7.0, 1.5]."""
    q, k, v = one_head(QUERIES) * math.sqrt(3), one_head(KEYS), one_head(VALUES)
    rounded = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
    _, weights = attend_explicit(q, k, v, None)
    torch.testing.assert_close(weights[0, 0, 0], rounded, rtol=0, atol=0.07)
    tap = Tap()
    tap.register_forward_hook(lambda module, inputs, output: rounded.expand_as(output))
    out, _ = attend_explicit(q, k, v, None, taps=AttentionTaps(Tap(), Tap(), tap))
    assert out[0, 0, 0].tolist() == [2.0, 7.0, 1.5]


def test_three_vectors_through_the_module() -> None:
    """The same with `SelfAttention`, whose outputs have the size of its inputs: vectors are padded with a zero."""
    attention = SelfAttention(4, 1, bias=False).double()
    with torch.no_grad():
        padded = [nn.functional.pad(tensor(matrix), (0, 1)) for matrix in (W_Q, W_K, W_V)]
        padded[0] *= math.sqrt(4 / 3)  # the head size is 4, in the example 3
        attention.qkv.weight.copy_(torch.cat([matrix.T for matrix in padded]))
        attention.out.weight.copy_(torch.eye(4))
    out = attention(tensor(INPUTS)[None], Positions(), torch.arange(3))[0]
    want = nn.functional.pad(torch.tensor(formula(math.sqrt(3)), dtype=torch.float64), (0, 1))
    torch.testing.assert_close(out, want, **EXACT)


def test_exact_outputs_to_four_decimals() -> None:
    """The result of the formula, as explicit numbers."""
    assert [[round(x, 4) for x in row] for row in formula(1.0)] == [
        [1.9366, 6.6831, 1.5951],
        [2.0, 7.964, 0.054],
        [1.9997, 7.7599, 0.3584],
    ]
    assert [[round(x, 4) for x in row] for row in formula(math.sqrt(3))] == [
        [1.8639, 6.3194, 1.7042],
        [1.9991, 7.8141, 0.2735],
        [1.9926, 7.4796, 0.7359],
    ]


# One training step of a 2+2-layer model: the numbers of its first encoder layer.
FIRST_LAYER_OUT = [-0.686, -0.343, -0.3232, 2.558]
FFN_INNER = [-0.9092, 2.315, -0.9092, 2.315, -1.4952, 2.072, -1.4952, 2.072]
FFN_OUT = [0.5, 15.233, 6.716, 6.945]


def test_residual_and_norm() -> None:
    """Mean and (population) variance of the sum, and its normalisation by our sub-layer."""
    x, f = (torch.tensor(row, dtype=torch.float64) for row in (FIRST_LAYER_OUT, FFN_OUT))
    total = x + f
    assert round(float(total.mean()), 2) == 7.65
    assert round(float(total.var(unbiased=False)), 3) == 29.709
    normed = SubLayer(nn.LayerNorm(4, eps=1e-12).double(), 0.0, "post")(x, lambda _: f)
    mean, variance = 7.64995, 29.7086642075
    want = [(number - mean) / math.sqrt(variance) for number in total.tolist()]
    torch.testing.assert_close(normed, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-9)
    assert [round(number, 3) for number in normed.tolist()] == [-1.438, 1.328, -0.231, 0.34]


def test_feed_forward_relu() -> None:
    """With identity matrices, the feed-forward network is its activation."""
    ffn = FeedForward(8, 8, "relu").double()
    with torch.no_grad():
        for linear in (ffn.inner, ffn.outer):
            linear.weight.copy_(torch.eye(8))
            linear.bias.zero_()
    out = ffn(torch.tensor(FFN_INNER, dtype=torch.float64))
    assert out.tolist() == [0, 2.315, 0, 2.315, 0, 2.072, 0, 2.072]


@pytest.mark.parametrize("d", [4, 64, 256])
def test_products_of_unit_variance_vectors_have_variance_d_and_one_after_scaling(d: int) -> None:
    rows = 40_000
    q, k = torch.randn(rows, d, dtype=torch.float64), torch.randn(rows, d, dtype=torch.float64)
    # Five standard deviations of a sample variance; products of normal variables have heavy tails.
    spread = 5 * math.sqrt(2 / rows) * math.sqrt(1 + 3 / d)
    assert float((q * k).sum(-1).var()) == pytest.approx(d, rel=spread)
    scores: list[Tensor] = []
    tap = Tap()
    tap.register_forward_hook(lambda module, inputs, output: scores.append(output))
    keys = k[:, None, None]  # (rows, 1, 1, Dh)
    attend_explicit(q[:, None, None], keys, keys, None, taps=AttentionTaps(tap, Tap(), Tap()))
    (scaled,) = scores
    assert float(scaled.var()) == pytest.approx(1, rel=spread)


def test_softmax_attention_has_full_rank_and_linear_attention_at_most_d_head() -> None:
    t, d_head = 40, 5
    q, k = torch.randn(1, 1, t, d_head, dtype=torch.float64), torch.randn(1, 1, t, d_head, dtype=torch.float64)
    _, weights = attend_explicit(2 * q, k, k, None)
    linear = q[0, 0].relu() @ k[0, 0].relu().T
    linear = linear / linear.sum(-1, keepdim=True).clamp(min=1e-9)
    assert int(torch.linalg.matrix_rank(q[0, 0] @ k[0, 0].T)) == d_head
    assert int(torch.linalg.matrix_rank(linear)) <= d_head
    assert int(torch.linalg.matrix_rank(weights[0, 0])) == t
