"""Tiny models learn to copy, reverse and sort: 99 % of unseen sequences right in a stated number of steps."""

from __future__ import annotations

from typing import Any

import pytest

from digit_tasks import trained
from dragoman.config import ConvolutionalConfig, GRUConfig, LSTMConfig, ModelConfig, TransformerConfig

SIZES = {"d_model": 64, "d_ff": 128, "n_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
PAPER = TransformerConfig.model_validate(SIZES)
MODERN = TransformerConfig.model_validate(
    SIZES
    | {
        "order": "pre",
        "norm": {"kind": "rms"},
        "position": {"kind": "rotary"},
        "activation": "silu",
        "gated": True,
        "bias": False,
    }
)
SSRU = TransformerConfig.model_validate(SIZES | {"decoder_self": "ssru"})
RECURRENT: dict[str, Any] = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
BAHDANAU = LSTMConfig.model_validate(RECURRENT | {"attention": {"kind": "bahdanau"}})
LUONG = LSTMConfig.model_validate(RECURRENT | {"attention": {"kind": "luong", "score": "general"}})
GRU = GRUConfig.model_validate(RECURRENT | {"attention": {"kind": "bahdanau"}})
CONVOLUTIONAL = ConvolutionalConfig.model_validate(RECURRENT | {"kernel": 3, "max_positions": 16, "decoder_layers": 2})
NO_ATTENTION = LSTMConfig.model_validate(RECURRENT | {"attention": {"kind": "none"}})


@pytest.mark.parametrize(
    ("name", "config", "steps"),
    [
        pytest.param("copy", PAPER, 400, id="copy"),
        pytest.param("reverse", PAPER, 500, id="reverse"),
        pytest.param("sort", PAPER, 450, id="sort"),
        pytest.param("reverse", SSRU, 500, id="reverse, ssru"),
        pytest.param("reverse", MODERN, 500, id="reverse, pre-norm rotary gated", marks=pytest.mark.slow),
        pytest.param("reverse", BAHDANAU, 400, id="reverse, lstm + bahdanau"),
        pytest.param("reverse", CONVOLUTIONAL, 400, id="reverse, convolutional"),
        pytest.param("copy", LUONG, 500, id="copy, lstm + luong", marks=pytest.mark.slow),
        pytest.param("copy", GRU, 400, id="copy, gru + bahdanau", marks=pytest.mark.slow),
        pytest.param("reverse", LUONG, 500, id="reverse, lstm + luong", marks=pytest.mark.slow),
    ],
)
def test_a_tiny_model_learns(name: str, config: ModelConfig, steps: int) -> None:
    peak, warmup = (2e-3, 100) if isinstance(config, TransformerConfig) else (5e-3, 50)
    assert trained(config, name, steps, peak=peak, warmup=warmup) >= 0.99


def test_the_last_hidden_state_alone_is_a_bottleneck() -> None:
    """Without attention the same steps are not enough: all digits must pass one vector."""
    assert trained(NO_ATTENTION, "reverse", 400, peak=5e-3, warmup=50) < 0.9
