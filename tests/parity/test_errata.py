"""What docs/learn/errata.md corrects and no other test shows."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dragoman.interpret.walkthrough.tiny_preset import TINY_PAIR, WORKED_MATRICES, tiny_model
from dragoman.nn.attention import CrossAttention, attend_explicit, causal_bias
from dragoman.nn.layers import RMSNorm
from dragoman.nn.linear_attention import LinearSelfAttention
from dragoman.nn.positions import Positions, Rotary
from dragoman.nn.record import record
from dragoman.nn.recurrent import LSTM
from small_networks import EXACT, random

T, D = 5, 6


def one_head(x: Tensor) -> Tensor:
    return x[None, None]


# ------------------------------------------------------------------------------------------------------------ attention


def test_the_denominator_sums_over_all_keys() -> None:
    q, k = random(T, D), random(T, D)
    _, weights = attend_explicit(one_head(q), one_head(k), one_head(k), None)
    powers = (q @ k.T / math.sqrt(D)).exp()
    torch.testing.assert_close(weights[0, 0], powers / powers.sum(1, keepdim=True), **EXACT)
    printed = powers / torch.stack([powers] * T).sum(0)  # exp(q . k_n) summed T times
    torch.testing.assert_close(printed, torch.full((T, T), 1 / T, dtype=torch.float64), **EXACT)
    assert (weights[0, 0] - printed).abs().max() > 1e-2


def test_attention_of_columns() -> None:
    """Z = V softmax(K^T Q / sqrt(d)) over columns is the transposed result for rows."""
    q, k, v = (random(D, T) for _ in range(3))
    rows, _ = attend_explicit(*(one_head(x.T.contiguous()) for x in (q, k, v)), None)
    weights = (k.T @ q / math.sqrt(D)).softmax(dim=0)
    torch.testing.assert_close(v @ weights, rows[0, 0].T, **EXACT)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        weights.T @ v


@pytest.mark.parametrize("distance", [1.0, 30.0, 700.0])
def test_unmasked_weights_are_positive(distance: float) -> None:
    q, k = torch.tensor([[1.0]]).double(), torch.tensor([[0.0], [-distance]]).double()
    _, weights = attend_explicit(one_head(q), one_head(k), one_head(k), None)
    assert 0 < weights.min() < 0.5
    bias = causal_bias(torch.arange(1), torch.arange(2), torch.float64)
    _, masked = attend_explicit(one_head(q), one_head(k), one_head(k), bias)
    assert masked[0, 0, 0].tolist() == [1, 0]


def test_cross_attention_is_divided_by_the_root() -> None:
    attention = CrossAttention(64, 1, bias=False).double()
    queries, states = random(1, T, 64), random(1, T, 64)
    with record(attention, "*") as seen, torch.no_grad():
        attention(queries, attention.project(states))
    products = seen["queries"][0] @ seen["keys"][0].transpose(-1, -2)
    torch.testing.assert_close(seen["scores"][0], products / 8, **EXACT)
    torch.testing.assert_close(seen["weights"][0], (products / 8).softmax(-1), **EXACT)


def recorded(src: Tensor, tgt: Tensor) -> tuple[Any, dict[str, Tensor]]:
    model = tiny_model()
    with record(model, "*") as seen, torch.no_grad():
        model(src, None, tgt)
    return model, {name: calls[0] for name, calls in seen.items()}


PARTS = ("queries", "keys", "values")
CROSS = "decoder.layers.0.cross_attn"


def test_queries_come_from_the_target_keys_and_values_from_the_source() -> None:
    src, tgt = TINY_PAIR.src, TINY_PAIR.tgt_in
    model, seen = recorded(src, tgt)
    (_, other_source), (_, other_target) = recorded(src.flip(1), tgt), recorded(src, tgt + 1)

    def changed(other: dict[str, Tensor]) -> list[bool]:
        return [not torch.equal(other[f"{CROSS}.{part}"], seen[f"{CROSS}.{part}"]) for part in PARTS]

    assert changed(other_source) == [False, True, True] and changed(other_target) == [True, False, False]
    memory = seen["encoder.layers.1.stream"]
    weight = model.get_parameter(f"{CROSS}.kv.weight")
    for part, matrix in zip(("keys", "values"), weight.chunk(2), strict=True):
        torch.testing.assert_close(seen[f"{CROSS}.{part}"].squeeze(1), memory @ matrix.T, **EXACT)


def test_the_query_of_cross_attention_is_made_behind_residual_and_norm() -> None:
    model, seen = recorded(TINY_PAIR.src, TINY_PAIR.tgt_in)
    layer, matrix = "decoder.layers.0", model.get_parameter(f"{CROSS}.q.weight")
    queries = seen[f"{CROSS}.queries"].squeeze(1)
    torch.testing.assert_close(queries, seen[f"{layer}.around_self_attn.norm.normed"] @ matrix.T, **EXACT)
    bare = seen[f"{layer}.around_self_attn.update"] @ matrix.T
    assert (queries - bare).abs().max() > 0.1


def test_the_last_product_of_linear_attention() -> None:
    """T D^2 for queries times the sums, as much as for the sums; 4 T D^2 are the four matrices."""
    attention = LinearSelfAttention(D, 1, "elu")
    for words in (T, 4 * T):
        x = torch.randn(1, words, D)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            attention(x, Positions(), torch.arange(words))
        assert counter.get_total_flops() // 2 == 6 * words * D * D


# --------------------------------------------------------------------------------------------------- positions, layers


def test_rotary_angles_beyond_the_training_length_are_new() -> None:
    """Of the slowest pair of 64 features, every distance has an angle of its own: none of a longer text was trained."""
    rotary, trained = Rotary(64, 10_000.0), 16
    rotary.ensure_length(64, torch.zeros(1))
    angles = rotary.rotations.angle()[:64, -1]
    assert (angles.diff() > 0).all() and (angles[trained:] > angles[:trained].max()).all()
    assert angles[-1] < math.pi / 2


def test_the_gradient_of_an_lstm_can_grow() -> None:
    """The forget gates alone give at most 1; through the hidden state and the gates, the cell's derivative grows."""
    cell = LSTM(1, 1).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        _, u, b, _ = cell.weights
        u[2] = 8.0  # candidate
        b[1] = 1.0  # forget gate
    state = start = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    hidden = 0.5 * torch.tanh(start)
    direct = 1.0
    for _ in range(3):
        hidden, state = cell.step(b, (hidden, state))
        direct *= torch.sigmoid(torch.tensor(1.0)).item()
    (gradient,) = torch.autograd.grad(state.sum(), start)
    assert direct < 0.4 and gradient.item() > 20


def test_rms_norm_is_the_root_mean_square() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    normed = RMSNorm(4).double()(x)
    torch.testing.assert_close(normed, x / x.square().mean().sqrt(), rtol=0, atol=1e-6)
    assert (normed - x / x.std(correction=0)).abs().max() > 0.5


# ------------------------------------------------------------------------------------------------------- worked numbers


def printed_key_scores(queries: list[list[float]]) -> Tensor:
    """The scores of queries with the printed key."""
    attention = CrossAttention(4, 1, bias=False).double()
    with torch.no_grad():
        nn.init.eye_(attention.q.weight)
        attention.kv.weight.copy_(torch.cat([torch.eye(4)] * 2))
    key = torch.tensor([[[-1.291, 1.479, 1.292, -1.291]]], dtype=torch.float64)
    with record(attention, "scores") as seen, torch.no_grad():
        attention(torch.tensor([queries], dtype=torch.float64), attention.project(key))
    return seen["scores"][0].flatten()


def test_no_rounding_of_the_query_gives_the_printed_score() -> None:
    """0.05 q = [a, b, a, b] with 0.082 and -0.079 as printed: the score is near -0.148 however these were rounded."""
    pairs = product(np.linspace(0.0815, 0.0825, 5), np.linspace(-0.0795, -0.0785, 5))
    scores = printed_key_scores([[a / 0.05, b / 0.05] * 2 for a, b in pairs])
    assert len(scores) == 25 and scores.min() > -0.149 and scores.max() < -0.146


def test_other_queries_give_the_printed_score() -> None:
    assert round(printed_key_scores([[0, 0, 0, 0.268]]).item(), 3) == -0.173
    _, seen = worked_gradients((0,))
    assert [round(x, 3) for x in seen[f"{CROSS}.scores"][0].flatten().tolist()] == [-0.173] * 4


def worked_gradients(losses: tuple[int, ...]) -> tuple[Any, Any]:
    """The model of the worked step, and the recording, after a backward pass from the sum of the given losses."""
    model = tiny_model(WORKED_MATRICES)
    with record(model, "*", gradients=True) as seen:
        log_p = model(*TINY_PAIR[:3])[0].log_softmax(-1)
        torch.stack([-log_p[t, TINY_PAIR.targets[0, t]] for t in losses]).sum().backward()
    return model, seen


def test_the_printed_update_uses_one_of_two_losses() -> None:
    name = f"{CROSS}.kv.weight"
    for losses, gradient, new in [((0,), -0.2056, 0.002056), ((1,), -0.2056, 0.002056), ((0, 1), -0.4112, 0.004112)]:
        model, _ = worked_gradients(losses)
        weight = model.get_parameter(name)
        assert round(weight.grad[4, 0].item(), 4) == gradient and weight[4, 0] == 0
        torch.optim.SGD([weight], lr=0.01).step()
        assert round(weight[4, 0].item(), 6) == new


def test_the_worked_model_does_not_have_the_assumed_gradients() -> None:
    """What docs/inside/walkthrough.md lists under "What is not reproduced"."""
    page = (Path(__file__).parents[2] / "docs" / "inside" / "walkthrough.md").read_text(encoding="utf-8")
    (_, of_first), (_, of_second), (model, of_both) = [worked_gradients(losses) for losses in ((0,), (1,), (0, 1))]
    for name in ("scores", "keys", "queries"):
        assert of_both.gradient(f"{CROSS}.{name}").abs().max() < 1e-12
    assumed = [0.2, 0.1, -0.3, 0.1]
    first, second = (seen.gradient(f"{CROSS}.heads")[0, 0] for seen in (of_first, of_second))
    assert first[0].tolist() == pytest.approx(assumed, abs=2e-4) and first[1].abs().max() == 0
    assert second.sum(0).tolist() == pytest.approx(assumed, abs=2e-4)
    rows = [", ".join(f"{x:.3f}".replace("-", "−") for x in row) for row in second.tolist()]
    assert all(f"`[{row}]`" in page for row in rows), rows
    with torch.no_grad():
        probability = model(*TINY_PAIR[:3])[0].softmax(-1)[1, 0]
    assert f"{probability:.4f}" == "0.0285" and "has 0.0285" in page


def test_equal_values_leave_the_gradient_through_the_values() -> None:
    """With the assumed gradient of the output, and the text's matrices, the total is that through the values."""
    attention = CrossAttention(4, 1, bias=False).double()
    matrices = [torch.tensor(WORKED_MATRICES[f"{CROSS}.{part}"], dtype=torch.float64).T for part in "kv"]
    with torch.no_grad():
        attention.q.weight.copy_(torch.eye(4))
        attention.out.weight.copy_(torch.eye(4))
        attention.kv.weight.copy_(torch.cat(matrices))
    memory = torch.tensor([[[-1.028, 1.479, -0.187, -0.263]] * 2], dtype=torch.float64, requires_grad=True)
    query = torch.tensor([[[1.64, -1.58, 1.64, -1.58]]], dtype=torch.float64)
    with record(attention, "*", gradients=True) as seen:
        output = attention(query, attention.project(memory))
        output.backward(torch.tensor([[[0.2, 0.1, -0.3, 0.1]]], dtype=torch.float64))
    assert memory.grad is not None
    assert seen.gradient("scores").abs().max() < 1e-15 and seen.gradient("keys").abs().max() < 1e-15
    want = torch.tensor([[[-0.1, 0.15, -0.05, 0.1]] * 2], dtype=torch.float64)
    torch.testing.assert_close(memory.grad, want, **EXACT)


def test_the_worked_model_has_fewer_than_a_thousand_parameters() -> None:
    assert tiny_model(WORKED_MATRICES).parameter_count() == 960
