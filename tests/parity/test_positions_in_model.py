"""Every kind of position in a Transformer: sensitivity to word order, and where it acts."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from dragoman.config import Position, TransformerConfig
from dragoman.models.build import build_model
from dragoman.nn.positions import Positions
from dragoman.tokenizers import EOS
from small_networks import EXACT, random_targets, shaken

B, K, T, D, H, V = 4, 3, 7, 12, 2, 19
SIZES = {"d_model": D, "d_ff": 20, "n_heads": H, "encoder_layers": 2, "decoder_layers": 3, "dropout": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"}, "sinusoidal": {"kind": "sinusoidal"}, "learned": {"kind": "learned", "max_len": 16},
    "recurrent over embeddings": {"kind": "recurrent", "source": "embeddings"},
    "recurrent positions": {"kind": "recurrent", "source": "positions"}, "shaw": {"kind": "shaw", "clip": 3},
    "t5": {"kind": "t5", "buckets": 8, "max_distance": 6}, "rotary": {"kind": "rotary"},
    "partial rotary": {"kind": "rotary", "fraction": 0.67}, "alibi": {"kind": "alibi"},
}  # fmt: skip
POSITION_SECTIONS = get_args(get_args(Position)[0])
UNSIGNED = {"alibi"}
"""Kinds that depend on |i - j|: in an encoder, they do not distinguish left and right."""


def built(kind: str, order: str = "post") -> Any:
    config = TransformerConfig.model_validate(SIZES | {"position": KINDS[kind], "order": order})
    return shaken(build_model(config, V, V))


def pooled(model: Any, src: Tensor) -> Tensor:
    states: Tensor = model.encode(src, None).states.detach()
    return states.mean(1)


def test_without_positions_the_encoder_ignores_word_order() -> None:
    """A permuted source gives the same states, permuted: without positions, order is ignored."""
    model, src, order = built("none"), torch.randint(EOS + 1, V, (B, T)), torch.randperm(T)
    states, permuted = model.encode(src, None).states, model.encode(src[:, order], None).states
    torch.testing.assert_close(permuted, states[:, order], **EXACT)
    torch.testing.assert_close(pooled(model, src[:, order]), pooled(model, src), **EXACT)
    ids = random_targets(B, T, V)
    torch.testing.assert_close(model(src[:, order], None, ids), model(src, None, ids), **EXACT)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_every_other_kind_distinguishes_word_order(kind: str) -> None:
    model, src = built(kind), torch.arange(EOS + 1, EOS + 1 + T)[None]
    order = torch.tensor([2, 0, 1, *range(3, T)])
    assert (pooled(model, src[:, order]) - pooled(model, src)).abs().max() > 1e-3
    ids = random_targets(1, T, V)
    assert (model(src[:, order], None, ids) - model(src, None, ids)).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_signed_kinds_distinguish_left_and_right(kind: str) -> None:
    """Reversing the source keeps all unsigned distances."""
    model, src = built(kind), torch.arange(EOS + 1, EOS + 1 + T)[None]
    difference = float((pooled(model, src.flip(1)) - pooled(model, src)).abs().max())
    if kind in UNSIGNED:
        assert difference < 1e-10
    else:
        assert difference > 1e-3, "a kind that depends on |i - j| belongs to UNSIGNED"


def document(kind: str, **changes: Any) -> dict[str, Any]:
    return SIZES | {"position": {"kind": kind}} | changes


@pytest.mark.parametrize("section", POSITION_SECTIONS)
def test_acts_on_names_what_the_module_changes(section: Any) -> None:
    model: Any = build_model(TransformerConfig.model_validate(document(section().kind)), V, V)
    scheme = type(model.encoder.positions.of_layer(0))
    methods = {"embeddings": ("embed",), "queries": ("rotate",), "scores": ("static_bias", "query_bias")}
    own = {name for base in scheme.__mro__ if base not in Positions.__mro__ for name in vars(base)}
    changed = [what for what, names in methods.items() if own.intersection(names)]
    assert changed == ([] if section.acts_on == "nothing" else [section.acts_on])


@pytest.mark.parametrize("section", POSITION_SECTIONS)
def test_a_kind_that_acts_on_attention_is_refused_where_there_is_none(section: Any) -> None:
    kind = section().kind
    refused = {
        "linear": (document(kind, attention={"kind": "linear"}), section.acts_on == "scores"),
        "ssru": (document(kind, decoder_self="ssru"), section.acts_on in ("queries", "scores")),
    }
    for name, (settings, is_refused) in refused.items():
        if is_refused:
            with pytest.raises(ValidationError, match=f"{kind} positions .*accepted: none, sinusoidal, "):
                TransformerConfig.model_validate(settings)
        else:
            assert TransformerConfig.model_validate(settings).position.kind == kind, name


def test_only_a_stack_that_sees_later_words_has_buckets_for_them() -> None:
    """T5 splits its buckets between the two directions in the encoder; the decoder uses all for earlier positions."""
    model = built("t5")
    pos = torch.arange(4)

    encoder, decoder = (stack.positions.static_bias(pos, pos)[0] for stack in (model.encoder, model.decoder))

    assert encoder[0, 1] != encoder[0, 0] and encoder[3, 0] == encoder[2, 0]  # past: 0, 1, 2 to 3, 4 and more
    assert decoder[0, 1] == decoder[0, 0] and decoder[3, 0] != decoder[2, 0]  # past: 0, 1, 2, 3 and on
