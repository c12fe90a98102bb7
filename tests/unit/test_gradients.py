"""bench/gradients.py: the measured gradients equal direct evaluations of the chain rule."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman import record
from dragoman.nn.record import replace

CLOSE = {"rtol": 1e-10, "atol": 0}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    return importlib.import_module("gradients")


def sequences(bench: ModuleType) -> tuple[Tensor, Tensor]:
    tokens, targets = bench.examples(20, 5, torch.Generator().manual_seed(1))
    return tokens, targets


def last_gradient(network: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """dL/dh_T of the cross-entropy: (probabilities - target) times the output matrix."""
    return (network(tokens).softmax(-1) - F.one_hot(targets, network.output.out_features)) @ network.output.weight


def recorded(network: nn.Module, name: str, tokens: Tensor) -> Tensor:
    with record(network, name) as recording:
        network(tokens)
    return recording.joined(name)


def measured(bench: ModuleType, network: nn.Module, tap: str = "cell.hidden") -> Tensor:
    ratios: Tensor = bench.relative_gradients(network, tap, *sequences(bench))
    return ratios


def test_linear_network_multiplies_by_a_power_of_u(bench: ModuleType) -> None:
    network = bench.rnn(3, "relu").double()
    _, u, b, _ = network.cell.weights
    u.data.uniform_(0, 1.8 / bench.D, generator=torch.Generator().manual_seed(2))
    b.data.fill_(20.0)  # with a positive U, no unit is ever cut off, so that the network is linear
    tokens, targets = sequences(bench)
    assert recorded(network, "cell.hidden", tokens).min() > 0
    g = last_gradient(network, tokens, targets)
    expected = [(g @ torch.linalg.matrix_power(u, k)).norm(dim=-1) / g.norm(dim=-1) for k in range(tokens.size(1))]
    torch.testing.assert_close(measured(bench, network), torch.stack(expected, dim=1), **CLOSE)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_each_step_multiplies_by_the_derivative_and_u(bench: ModuleType, activation: str) -> None:
    network = bench.rnn(3, activation, radius=1.1).double()
    tokens, targets = sequences(bench)
    h = recorded(network, "cell.hidden", tokens)
    derivative = (h > 0).double() if activation == "relu" else 1 - h**2
    u = network.cell.weights[1]
    g = [last_gradient(network, tokens, targets)]
    for t in range(tokens.size(1) - 1, 0, -1):
        g.append((g[-1] * derivative[:, t]) @ u)
    norms = torch.stack(g, dim=1).norm(dim=-1)
    torch.testing.assert_close(measured(bench, network), norms / norms[:, :1], **CLOSE)


def test_cell_without_recurrent_matrix_is_multiplied_by_the_forget_gates(bench: ModuleType) -> None:
    network = bench.lstm(3).double()
    network.cell.weights[1].data.zero_()
    tokens, targets = sequences(bench)
    gate = {name: recorded(network, f"cell.{name}", tokens) for name in ("forget_gate", "output_gate", "cell")}
    g = last_gradient(network, tokens, targets) * gate["output_gate"][:, -1] * (1 - gate["cell"][:, -1].tanh() ** 2)
    forgets = gate["forget_gate"].flip(1)[:, :-1].cumprod(1)  # f_T, f_T f_(T-1), ...
    expected = torch.cat([torch.ones(len(g), 1), (g[:, None] * forgets).norm(dim=-1) / g.norm(dim=-1)[:, None]], dim=1)
    torch.testing.assert_close(measured(bench, network, "cell.cell"), expected, **CLOSE)
    assert not measured(bench, network)[:, 1:].any()  # the hidden state is connected by U only


def test_transformer_layer_is_differentiated_at_its_input(bench: ModuleType) -> None:
    kind = bench.KINDS["Transformer layer"]
    network = kind.build(3).double()
    tokens, targets = sequences(bench)
    x = recorded(network, kind.tap, tokens).requires_grad_()
    with replace(network, {kind.tap: x}):
        loss = F.cross_entropy(network(tokens), targets, reduction="sum")
    norms = torch.autograd.grad(loss, x)[0].norm(dim=-1).flip(1)
    torch.testing.assert_close(measured(bench, network, kind.tap), norms / norms[:, :1], **CLOSE)


@pytest.mark.parametrize("radius", [0.5, 1.5])
def test_spectral_radius(bench: ModuleType, radius: float) -> None:
    eigenvalues = torch.linalg.eigvals(bench.rnn(1, radius=radius).double().cell.weights[1].data)
    assert float(eigenvalues.abs().max()) == pytest.approx(radius, rel=1e-5)


def test_forget_bias(bench: ModuleType) -> None:
    network = bench.lstm(1, forget_bias=5.0)
    network.cell.weights[0].data.zero_()
    network.cell.weights[1].data.zero_()
    tokens, _ = sequences(bench)
    gates = recorded(network, "cell.forget_gate", tokens)
    torch.testing.assert_close(gates, torch.full_like(gates, 5.0).sigmoid())


def test_examples_ask_for_their_first_token(bench: ModuleType) -> None:
    tokens, targets = bench.examples(7, 50, torch.Generator().manual_seed(1))
    assert tokens.shape == (50, 9) and torch.equal(tokens[:, 0], targets)
    others = tokens[:, 1:-1]
    assert set(targets.tolist()).isdisjoint(others.flatten().tolist())
    assert (tokens[:, -1] == bench.QUERY).all() and bench.QUERY not in others


def test_memory_is_that_of_the_best_rate_and_reproducible(bench: ModuleType) -> None:
    scale = bench.Scale(updates=30, seeds=1, rates=(0.0, 1e-2, 1e-9))
    kind = bench.KINDS["LSTM, forget bias 5"]
    first, second = (bench.remember(kind, 2, scale) for _ in range(2))
    assert first.rate == 1e-2 and first.correct == [100.0]
    assert second.correct == first.correct
    for a, b in zip(first.networks, second.networks, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
