"""A tiny Transformer learns to copy, reverse and sort: 99 % of unseen sequences right in a stated number of steps."""

from __future__ import annotations

import pytest

from digit_tasks import trained
from dragoman.config import TransformerConfig

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


@pytest.mark.parametrize(
    ("name", "config", "steps"),
    [
        pytest.param("copy", PAPER, 400, id="copy"),
        pytest.param("reverse", PAPER, 500, id="reverse"),
        pytest.param("sort", PAPER, 450, id="sort"),
        pytest.param("reverse", SSRU, 500, id="reverse, ssru"),
        pytest.param("reverse", MODERN, 500, id="reverse, pre-norm rotary gated", marks=pytest.mark.slow),
    ],
)
def test_a_tiny_transformer_learns(name: str, config: TransformerConfig, steps: int) -> None:
    assert trained(config, name, steps, peak=2e-3, warmup=100) >= 0.99
