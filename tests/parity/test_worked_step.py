"""One training step of a 2+2-layer model on "I am" -> "我 是", computed by hand in a text, reproduced with our code.

The text omits its inputs, some of its matrices and most parameters of its norms.  Those of `worked_numbers.GIVEN` were
reconstructed and reproduce all given numbers, backward as well as forward; the first layer's feed-forward network is
one of several that do.  The text rounds intermediate results: printed numbers are compared up to rounding, and
consequences of its inputs exactly.  All of them are in test_gallery_recomputed.py; here is what docs/learn/errata.md
says of some.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from worked_numbers import GIVEN, computed

from dragoman.nn.attention import attend_explicit

EXACT: dict[str, Any] = {"rtol": 0.0, "atol": 1e-10}
PRINTED: dict[str, Any] = {"rtol": 0.0, "atol": 5e-4}
"""The precision of the three decimals in the text."""

K_CROSS, V_CROSS = [-1.291, 1.479, 1.292, -1.291], [1.292, -1.291, -1.215, 1.216]
V_PATH = [-0.1, 0.15, -0.05, 0.1]


def check(name: str, want: Any, **tolerance: float) -> None:
    torch.testing.assert_close(computed()[name], torch.tensor(want, dtype=torch.float64), **(tolerance or EXACT))


# ----------------------------------------------------------------------------------------------------------- forwards


def test_output_of_the_first_layer() -> None:
    """The text has -1.3807 and 1.6608 instead of -1.3814 and 1.6611, because it truncated -1.4376 to -1.437."""
    inner = [-0.9092, 2.315, -0.9092, 2.315, -1.4952, 2.072, -1.4952, 2.072]
    check("encoder 1: ffn.before", [inner, inner], rtol=0, atol=5e-5)
    check("encoder 1: around_ffn.update", [[0.5, 15.233, 6.716, 6.945]] * 2, **PRINTED)
    check("encoder 1: stream", [[-1.3814, 1.6611, -0.2306, 0.34]] * 2, rtol=0, atol=1e-4)
    check("encoder 1: stream", [[-1.3807, 1.6608, -0.231, 0.34]] * 2, rtol=0, atol=1e-3)


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


def test_equal_values_send_nothing_back_through_the_weights() -> None:
    """With equal values the output is the common value, for any weights."""
    of = computed()
    assert of["gradient through output: query"].abs().max() < 1e-15
    assert of["gradient through output: keys"].abs().max() < 1e-15
    check("gradient through output: memory", [V_PATH, V_PATH])
