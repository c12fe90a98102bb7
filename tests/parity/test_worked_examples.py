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
from dragoman.nn.positions import Positions
from dragoman.nn.record import Tap

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
    """By the formula, and with queries times sqrt(Dh), which cancels the division."""
    for factor in (1.0, math.sqrt(3)):
        out = WAYS[way](one_head(QUERIES) * factor, one_head(KEYS), one_head(VALUES))[0, 0]
        want = torch.tensor(formula(math.sqrt(3) / factor), dtype=torch.float64)
        torch.testing.assert_close(out, want, **EXACT)


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
