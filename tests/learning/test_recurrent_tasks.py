"""Recurrent models learn to copy and reverse: 99 % of unseen sequences right in a stated number of steps."""

from __future__ import annotations

from typing import Any

import pytest

from digit_tasks import trained
from dragoman.config import GRUConfig, LSTMConfig, ModelConfig

SIZES: dict[str, Any] = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
BAHDANAU = LSTMConfig.model_validate(SIZES | {"attention": {"kind": "bahdanau"}})
LUONG = LSTMConfig.model_validate(SIZES | {"attention": {"kind": "luong", "score": "general"}})
GRU = GRUConfig.model_validate(SIZES | {"attention": {"kind": "bahdanau"}})
NO_ATTENTION = LSTMConfig.model_validate(SIZES | {"attention": {"kind": "none"}})


@pytest.mark.parametrize(
    ("name", "config", "steps"),
    [
        pytest.param("reverse", BAHDANAU, 400, id="reverse, lstm + bahdanau"),
        pytest.param("copy", LUONG, 500, id="copy, lstm + luong", marks=pytest.mark.slow),
        pytest.param("copy", GRU, 400, id="copy, gru + bahdanau", marks=pytest.mark.slow),
        pytest.param("reverse", LUONG, 500, id="reverse, lstm + luong", marks=pytest.mark.slow),
    ],
)
def test_a_recurrent_model_with_attention_learns(name: str, config: ModelConfig, steps: int) -> None:
    assert trained(config, name, steps, peak=5e-3, warmup=50) >= 0.99


def test_the_last_hidden_state_alone_is_a_bottleneck() -> None:
    """Without attention the same steps are not enough: all digits must pass one vector."""
    assert trained(NO_ATTENTION, "reverse", 400, peak=5e-3, warmup=50) < 0.9
