"""Numbers computed by hand in texts about the Transformer, reproduced with our code."""

from __future__ import annotations

import math

import torch

from dragoman.nn.attention import AttentionTaps, attend_explicit
from dragoman.nn.record import Tap

QUERIES, KEYS, VALUES = torch.tensor(
    [[[1, 0, 2], [2, 2, 2], [2, 1, 3]], [[0, 1, 1], [4, 4, 0], [2, 3, 1]], [[1, 2, 3], [2, 8, 0], [2, 6, 3]]],
    dtype=torch.float64,
)[:, None, None]  # each (1, 1, T, Dh)


def test_three_vectors_with_the_sources_rounded_weights() -> None:
    """The source rounds the first query's weights to [0.0, 0.5, 0.5] and obtains [2.0, 7.0, 1.5]."""
    q, k, v = QUERIES * math.sqrt(3), KEYS, VALUES
    rounded = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
    _, weights = attend_explicit(q, k, v, None)
    torch.testing.assert_close(weights[0, 0, 0], rounded, rtol=0, atol=0.07)
    tap = Tap()
    tap.register_forward_hook(lambda module, inputs, output: rounded.expand_as(output))
    out, _ = attend_explicit(q, k, v, None, taps=AttentionTaps(Tap(), Tap(), tap))
    assert out[0, 0, 0].tolist() == [2.0, 7.0, 1.5]


def test_softmax_attention_has_full_rank_and_linear_attention_at_most_d_head() -> None:
    t, d_head = 40, 5
    q, k = torch.randn(1, 1, t, d_head, dtype=torch.float64), torch.randn(1, 1, t, d_head, dtype=torch.float64)
    _, weights = attend_explicit(2 * q, k, k, None)
    linear = q[0, 0].relu() @ k[0, 0].relu().T
    linear = linear / linear.sum(-1, keepdim=True).clamp(min=1e-9)
    assert int(torch.linalg.matrix_rank(q[0, 0] @ k[0, 0].T)) == d_head
    assert int(torch.linalg.matrix_rank(linear)) <= d_head
    assert int(torch.linalg.matrix_rank(weights[0, 0])) == t
