"""Recurrent positions: step by step with the carry = all at once, and no influence of padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dragoman.nn.positions import Positions, RecurrentOverEmbeddings, RecurrentPositions

N, T, D = 4, 9, 6
EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}
KINDS: dict[str, Any] = {"embeddings": RecurrentOverEmbeddings, "positions": RecurrentPositions}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(params=KINDS)
def positions(request: pytest.FixtureRequest) -> Positions:
    """Convert to float64, with parameters that are neither small nor equal."""
    made: Positions = KINDS[request.param](D).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.7)
    return made


def at_once(positions: Positions, x: Tensor) -> Tensor:
    return positions.embed(x, torch.arange(x.size(1)), None)[0]


def test_over_embeddings_is_a_gru_and_the_embedding_itself() -> None:
    positions, x = RecurrentOverEmbeddings(D).double(), random(N, T, D)
    for parameter in positions.parameters():
        nn.init.normal_(parameter, std=0.7)
    w, u, b, c = positions.rnn.all_weights[0]
    h, marked = torch.zeros(N, D, dtype=torch.float64), []
    for t in range(T):
        of_x, of_h = (x[:, t] @ w.T + b).chunk(3, dim=-1), (h @ u.T + c).chunk(3, dim=-1)
        reset, update = (of_x[0] + of_h[0]).sigmoid(), (of_x[1] + of_h[1]).sigmoid()
        h = (1 - update) * (of_x[2] + reset * of_h[2]).tanh() + update * h
        marked.append(x[:, t] + h)
    got, carry = positions.embed(x, torch.arange(T), None)
    torch.testing.assert_close(got, torch.stack(marked, dim=1), **EXACT)
    assert carry is not None
    torch.testing.assert_close(carry, h, **EXACT)


def test_each_recurrent_position_is_computed_from_the_one_before() -> None:
    positions, x = RecurrentPositions(D).double(), random(N, T, D)
    nn.init.normal_(positions.bias)
    got, carry = positions.embed(x, torch.arange(T), None)
    vector: Tensor = positions.start
    for t in range(T):
        torch.testing.assert_close(got[:, t], x[:, t] + vector, **EXACT)
        last, vector = vector, torch.tanh(positions.weight @ vector + positions.bias)
    assert carry is not None
    torch.testing.assert_close(carry, last.expand(N, D), **EXACT)


def test_positions_distinguish_word_order(positions: Positions) -> None:
    x = random(N, T, D)
    swapped = x.clone()
    swapped[:, [1, 2]] = x[:, [2, 1]]
    one, other = at_once(positions, x), at_once(positions, swapped)
    assert (one[:, [2, 1]] - other[:, [1, 2]]).abs().amax(-1).min() > 1e-3


def test_gradients_against_differences(positions: Positions) -> None:
    x, pos = random(2, 3, D).requires_grad_(), torch.arange(3)

    def marked(x: Tensor, *parameters: Tensor) -> Tensor:
        return positions.embed(x, pos, None)[0]

    assert torch.autograd.gradcheck(marked, (x, *positions.parameters()))


def test_recurrent_positions_stay_distinct_and_bounded() -> None:
    """An untrained network must generate distinguishable vectors far beyond the first positions."""
    width, length = 64, 400
    for seed in range(5):
        positions = RecurrentPositions(width)
        positions.reset(torch.Generator().manual_seed(seed))
        vectors = at_once(positions, torch.zeros(1, length, width))[0].detach()
        sizes = vectors.square().mean(-1)
        assert sizes.min() > 0.02 and sizes.max() < 0.2
        nearest = torch.cdist(vectors, vectors).fill_diagonal_(torch.inf).amin(1)
        assert (nearest > 0.1 * vectors.norm(dim=-1).mean()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_reset_follows_its_generator(kind: str) -> None:
    one, other = KINDS[kind](D), KINDS[kind](D)
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    for positions in (one, other):
        positions.reset(torch.Generator().manual_seed(5))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_positions_follow_the_dtype(kind: str) -> None:
    positions, x = KINDS[kind](D), torch.randn(N, T, D)
    want = at_once(positions, x)
    got, carry = positions.to(torch.bfloat16).embed(x.to(torch.bfloat16), torch.arange(T), None)
    assert got.dtype == carry.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), want, rtol=0, atol=0.05)


def test_initial_values_follow_the_formulas() -> None:
    positions = RecurrentPositions(D)
    positions.reset(torch.Generator().manual_seed(3))
    drawn = torch.randn(D, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(positions.start.detach(), drawn * ((1.1**2 - 1) / (2 * 1.1**4)) ** 0.5)
    torch.testing.assert_close(positions.weight @ positions.weight.T, 1.21 * torch.eye(D))

    ((of_input, of_hidden, *biases),) = RecurrentOverEmbeddings(D).rnn.all_weights
    for gate in of_hidden.chunk(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(D), rtol=0, atol=1e-5)
    assert 0 < of_input.abs().max() <= (6 / (2 * D)) ** 0.5 and not any(bias.any() for bias in biases)
