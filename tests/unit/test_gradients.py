"""Gradients of recurrent cells over time, as `record` finds them, equal direct evaluations of the chain rule."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman import record
from dragoman.nn.recurrent import LSTM, Cell, VanillaRNN

D, WORDS = 32, 65
CLOSE = {"rtol": 1e-10, "atol": 0}
_generator = torch.Generator().manual_seed(1)
TOKENS, TARGETS = torch.randint(WORDS, (5, 22), generator=_generator), torch.randint(WORDS, (5,), generator=_generator)


class Reader(nn.Module):
    """Embedding, one cell, and an output layer at the last position."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell, generator = cell, torch.Generator().manual_seed(3)
        self.embedding, self.output = nn.Embedding(WORDS, D), nn.Linear(D, WORDS)
        for weight in (self.embedding.weight, self.output.weight):
            nn.init.normal_(weight, std=D**-0.5, generator=generator)
        cell.reset(generator)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(self.cell(self.embedding(tokens))[0][:, -1])
        return logits

    def recorded(self, name: str) -> Tensor:
        with record(self, f"cell.{name}") as recording:
            self(TOKENS)
        return recording.joined(f"cell.{name}")

    def last_gradient(self) -> Tensor:
        """dL/dh_T of the cross-entropy: (probabilities - target) times the output matrix."""
        return (self(TOKENS).softmax(-1) - F.one_hot(TARGETS, WORDS)) @ self.output.weight

    def gradients(self, name: str = "hidden") -> Tensor:
        """|dL/dh_(T-k)| / |dL/dh_T| at index k of (N, T)."""
        with record(self, f"cell.{name}", gradients=True) as recording:
            F.cross_entropy(self(TOKENS), TARGETS, reduction="sum").backward()
        norms = recording.gradient(f"cell.{name}").norm(dim=-1).flip(1)
        ratios: Tensor = norms / norms[:, :1]
        return ratios


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_each_step_multiplies_by_the_derivative_and_u(activation: str) -> None:
    network = Reader(VanillaRNN(D, D, activation))
    u = network.cell.weights[1]
    u.data *= 1.1  # of an orthogonal matrix
    h = network.recorded("hidden")
    derivative = (h > 0).double() if activation == "relu" else 1 - h**2
    g = [network.last_gradient()]
    for t in range(TOKENS.size(1) - 1, 0, -1):
        g.append((g[-1] * derivative[:, t]) @ u)
    norms = torch.stack(g, dim=1).norm(dim=-1)
    torch.testing.assert_close(network.gradients(), norms / norms[:, :1], **CLOSE)


def test_cell_without_recurrent_matrix_is_multiplied_by_the_forget_gates() -> None:
    network = Reader(LSTM(D, D))
    network.cell.weights[1].data.zero_()
    gate = {name: network.recorded(name) for name in ("forget_gate", "output_gate", "cell")}
    g = network.last_gradient() * gate["output_gate"][:, -1] * (1 - gate["cell"][:, -1].tanh() ** 2)
    forgets = gate["forget_gate"].flip(1)[:, :-1].cumprod(1)  # f_T, f_T f_(T-1), ...
    expected = torch.cat([torch.ones(len(g), 1), (g[:, None] * forgets).norm(dim=-1) / g.norm(dim=-1)[:, None]], dim=1)
    torch.testing.assert_close(network.gradients("cell"), expected, **CLOSE)
    assert not network.gradients()[:, 1:].any()  # the hidden state is connected by U only
