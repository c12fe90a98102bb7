"""One training step of a 2+2-layer model on "I am" -> "我 是", computed by hand in a text, reproduced with our code.

The text omits its inputs, some of its matrices and most parameters of its norms.  Those of `worked_numbers.GIVEN` were
reconstructed and reproduce all given numbers, backward as well as forward; the first layer's feed-forward network is
one of several that do.  The text rounds intermediate results: printed numbers are compared up to rounding, and
consequences of its inputs exactly.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from worked_numbers import GIVEN, backward, computed

from dragoman.config import AdamConfig, TransformerConfig
from dragoman.models.build import build_model
from dragoman.models.seq2seq import Model
from dragoman.nn.attention import attend_explicit
from dragoman.tokenizers import BOS, PAD
from dragoman.training.loss import TokenLoss
from dragoman.training.optim import build_optimizer

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}
PRINTED: dict[str, Any] = {"rtol": 0.0, "atol": 5e-4}
"""The precision of the three decimals in the text."""

V_2 = [15.4, 15.4, 13.2, 19.8]
K_CROSS, V_CROSS = [-1.291, 1.479, 1.292, -1.291], [1.292, -1.291, -1.215, 1.216]
V_PATH, K_PATH = [-0.1, 0.15, -0.05, 0.1], [0.003, 0.003, 0.082, 0.003]


def check(name: str, want: Any, **tolerance: float) -> None:
    torch.testing.assert_close(computed()[name], torch.tensor(want, dtype=torch.float64), **(tolerance or EXACT))


# ----------------------------------------------------------------------------------------------------------- forwards


def test_scores_of_the_first_layer() -> None:
    check("products", [[112.53, 340.01], [281.93, 857.89]])
    assert computed()["encoder 1: self_attn.values"][1].tolist() == pytest.approx(V_2, abs=1e-10)


def test_scores_far_apart_leave_the_second_word_only() -> None:
    """Not quite 0 and 1: the first weights are e^-113.74 and e^-287.98.  Both words take the second one's value."""
    check("encoder 1: self_attn.weights", [[0, 1], [0, 1]], rtol=0, atol=1e-40)
    logs = computed()["encoder 1: self_attn.weights"][:, 0].log().tolist()
    assert logs == pytest.approx([-113.74, -287.98], abs=1e-9)
    check("encoder 1: self_attn.heads", [V_2, V_2])


def test_the_norm_removes_a_constant_difference() -> None:
    """Normalising word + value gives [-2, -1, -2, 5] / sqrt(8.5), of variance 1, for both words."""
    normed = [number / math.sqrt(8.5) for number in (-2, -1, -2, 5)]
    want = [g * number + b for g, number, b in zip([1, 1, 1.2, 1.2], normed, [0, 0, 0.5, 0.5], strict=True)]
    check("encoder 1: around_self_attn.norm.normed", [want, want])
    check("encoder 1: around_self_attn.norm.normed", [[-0.686, -0.343, -0.3232, 2.558]] * 2, rtol=0, atol=5e-5)


def test_output_of_the_first_layer() -> None:
    """The text has -1.3807 and 1.6608 instead of -1.3814 and 1.6611, because it truncated -1.4376 to -1.437."""
    inner = [-0.9092, 2.315, -0.9092, 2.315, -1.4952, 2.072, -1.4952, 2.072]
    check("encoder 1: ffn.before", [inner, inner], rtol=0, atol=5e-5)
    check("encoder 1: around_ffn.update", [[0.5, 15.233, 6.716, 6.945]] * 2, **PRINTED)
    check("encoder 1: stream", [[-1.3814, 1.6611, -0.2306, 0.34]] * 2, rtol=0, atol=1e-4)
    check("encoder 1: stream", [[-1.3807, 1.6608, -0.231, 0.34]] * 2, rtol=0, atol=1e-3)


def test_equal_inputs_share_the_weight() -> None:
    """Encoder layer 2, for which the text needs no weights."""
    check("encoder 2: weights", [[0.5, 0.5], [0.5, 0.5]])


def test_the_mask_turns_the_first_word_to_itself() -> None:
    """6.64 | 125 and 32.49 | 128.79 after the division; without the mask both words would attend to the second one."""
    masked = computed()["masked attention: weights"]
    assert masked[0].tolist() == [1, 0]
    check("masked attention: weights", [[1, 0], [0, 1]], rtol=0, atol=1e-40)
    assert float(masked[1, 0].log()) == pytest.approx(32.49 - 128.79, abs=1e-9)
    q, k = nn.functional.pad(GIVEN["masked_products"], (0, 2))[None, None], torch.eye(2, 4).double()[None, None]
    unmasked = attend_explicit(q, k, k, None)[1][0, 0]
    torch.testing.assert_close(unmasked, torch.tensor([[0.0, 1], [0, 1]]).double(), rtol=0, atol=1e-40)


def test_equal_keys_give_their_common_value() -> None:
    """The text has the score -0.173 twice for either query; only their equality within a row matters."""
    check("cross-attention: keys", [K_CROSS] * 2)
    check("cross-attention: values", [V_CROSS] * 2)
    check("cross-attention: weights", [[0.5, 0.5]] * 2)
    check("cross-attention: heads", [V_CROSS] * 2)
    check("cross-attention: norm", [[1.443, -1.377, 0.115, 0.218], [1.741, -0.917, -0.014, -0.411]], **PRINTED)


def test_the_loss_of_two_words() -> None:
    """-ln 0.670 - ln 0.70 = 0.400 + 0.357 = 0.757; the last column stands for all words omitted in the text.

    Of the other probabilities one does not fit: beside 0.70 for the logit 4.0, the logit 0.8 has 0.03 and not 0.04.
    """
    check("losses", [[-math.log(0.67), -math.log(0.7)]])
    check("losses", [[0.4, 0.357]], **PRINTED)
    assert float(computed()["losses"].sum()) == pytest.approx(0.757, abs=5e-4)
    kept = computed()["probabilities"][:, :3].flatten().tolist()
    assert kept == pytest.approx([0.033, 0.67, 0.067, 0.0285, 0.105, 0.7], abs=5e-4)


# ---------------------------------------------------------------------------------------------------------- backwards


@cache
def small_model() -> Model:
    """The text's sizes; one head, three matrices of words."""
    config = TransformerConfig(
        d_model=4, d_ff=8, n_heads=1, encoder_layers=2, decoder_layers=2, dropout=0.0, tie="none"
    )
    model = build_model(config, 9, 9).double()
    assert isinstance(model, Model)
    return model


def test_the_gradient_of_a_shared_matrix_is_the_sum_over_positions() -> None:
    """For every parameter dL/dW = dL_1/dW + dL_2/dW, where the other target is replaced by padding."""
    model = small_model()
    src, told = torch.tensor([[4, 5]]), torch.tensor([[BOS, 6]])

    def gradients(*targets: int) -> tuple[Tensor, ...]:
        loss = model(src, None, told, TokenLoss(torch.tensor([targets]), 0.0))
        return torch.autograd.grad(loss.smoothed, list(model.parameters()))

    parts = gradients(6, PAD), gradients(PAD, 7)
    for (name, _), both, one, two in zip(model.named_parameters(), gradients(6, 7), *parts, strict=True):
        torch.testing.assert_close(both, one + two, **EXACT)
        assert both.any(), name


def test_the_gradient_of_the_last_matrix() -> None:
    """dL/dW_final = sum over positions of (p_t - target_t) h_t^T."""
    model = small_model()
    src, told, targets = torch.tensor([[4, 5]]), torch.tensor([[BOS, 6]]), torch.tensor([[6, 7]])
    matrix = model.get_submodule("output").get_parameter("weight")
    loss = model(src, None, told, TokenLoss(targets, 0.0)).smoothed
    (gradient,) = torch.autograd.grad(loss, [matrix])
    hidden = model.hidden(src, None, told).detach()[0]
    want = torch.zeros(9, 4, dtype=torch.float64)
    for h, target in zip(hidden, targets[0].tolist(), strict=True):
        wrong = (matrix.detach() @ h).softmax(0)
        wrong[target] -= 1
        want += wrong[:, None] * h
    torch.testing.assert_close(gradient, want, **EXACT)


def test_equal_values_send_nothing_back_through_the_weights() -> None:
    """With equal values the output is the common value, for any weights."""
    of = computed()
    assert of["gradient through output: query"].abs().max() < 1e-15
    assert of["gradient through output: keys"].abs().max() < 1e-15
    check("gradient through output: memory", [V_PATH, V_PATH])


def test_backwards_through_values_and_keys() -> None:
    """The text continues with assumed scores [0.1, -0.1].

    Weights of [0.5, 0.5] have it if the loss goes by them with [0.2, -0.2]: 0.5 (0.2 - 0) and 0.5 (-0.2 - 0).  Scaled,
    [0.05, -0.05] times the query goes to the keys, and times the equal keys nothing to the query.
    """
    keys = [0.082, -0.079, 0.082, -0.079]
    check("gradient through output and weights: scores", [[0.1, -0.1]])
    check("gradient through output and weights: keys", [keys, [-x for x in keys]])
    assert computed()["gradient through output and weights: query"].abs().max() < 1e-15
    want = [[v + sign * k for v, k in zip(V_PATH, K_PATH, strict=True)] for sign in (1, -1)]
    check("gradient through output and weights: memory", want)
    assert [[round(x, 3) for x in row] for row in want] == [
        [-0.097, 0.153, 0.032, 0.103],
        [-0.103, 0.147, -0.132, 0.097],
    ]


def test_the_update() -> None:
    """0 - 0.01 * -0.2056 = 0.002056 by gradient descent; Adam's first step is the rate, however large the gradient."""
    attention, _ = backward("output and weights")
    of_first = float(attention.kv.weight.grad[4, 0])  # W^V[0, 0]: behind the four rows of W^K
    assert of_first == pytest.approx(2 * 0.5 * 0.2 * -1.028, abs=1e-12)
    assert of_first == pytest.approx(-0.2056, abs=1e-12)
    assert 0 - 0.01 * of_first == pytest.approx(0.002056, abs=1e-12)
    module = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(module.weight)
    module.weight.grad = torch.tensor([[of_first]], dtype=torch.float64)
    optimizer = build_optimizer(AdamConfig(), module)
    optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()
    assert float(module.weight.detach()) == pytest.approx(0.01, rel=1e-6)
