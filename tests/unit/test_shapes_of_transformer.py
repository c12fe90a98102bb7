"""Decoder-only and encoder-only Transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dragoman.config import DecoderOnlyConfig, EncoderOnlyConfig
from dragoman.errors import UsageError
from dragoman.models.build import build_model
from dragoman.models.seq2seq import EncoderOnly
from dragoman.models.transformer import DecoderOnly
from dragoman.nn.attention import Span, causal_bias
from dragoman.tokenizers import EOS, PAD
from small_networks import EXACT, SIZES, VARIANTS, D, random_targets, shaken

B, S, T, V = 4, 7, 6, 19


def nothing(count: int) -> Tensor:
    """The empty source of a decoder-only model."""
    return torch.zeros(count, 0, dtype=torch.long)


# ------------------------------------------------------------------------------------------------------ decoder only


def decoder_only(variant: str = "paper") -> DecoderOnly:
    model = shaken(build_model(DecoderOnlyConfig.model_validate(SIZES | VARIANTS[variant]), V, V))
    assert isinstance(model, DecoderOnly)
    return model


@pytest.mark.parametrize("variant", ["paper", "gpt-2", "llama"])
def test_it_is_the_layers_of_an_encoder_under_a_causal_mask(variant: str) -> None:
    model, ids, pos = decoder_only(variant), random_targets(B, T, V), torch.arange(T)
    x, _ = model.positions.embed(model.embedding(ids), pos, None)
    for layer in model.layers:
        x = layer(x, Span(model.positions, pos, causal_bias(pos, pos, x.dtype)))
    torch.testing.assert_close(model(nothing(B), None, ids), model.output(model.final_norm(x)), **EXACT)


def test_a_source_is_refused_with_the_advice_to_use_a_prefix() -> None:
    model = decoder_only()
    with pytest.raises(UsageError, match=r"a source of 5 tokens.*\(2, 0\).*prompt.*prefix"):
        model.encode(torch.full((2, 5), EOS), None)
    memory = model.encode(nothing(2), None)
    assert memory.states.shape == (2, 0, D) and memory.mask is None


# ------------------------------------------------------------------------------------------------------ encoder only


def sentences() -> tuple[Tensor, Tensor]:
    src = torch.randint(EOS + 1, V, (B, S))
    mask = torch.arange(S) < torch.tensor([S, 3, 5, 1])[:, None]
    return src.masked_fill(~mask, PAD), mask


def test_pooling_takes_the_first_vector_or_the_mean_over_words() -> None:
    network: EncoderOnly = shaken(build_model(EncoderOnlyConfig.model_validate(SIZES | {"pooling": "none"}), V, 5))
    src, mask = sentences()
    unused = torch.zeros(B, 1, dtype=torch.long)
    words = network.hidden(src, mask, unused)
    network.pooling = "first"
    torch.testing.assert_close(network.hidden(src, mask, unused), words[:, :1], **EXACT)
    network.pooling = "mean"
    means = torch.stack([words[row, :length].mean(0) for row, length in enumerate((S, 3, 5, 1))])
    torch.testing.assert_close(network.hidden(src, mask, unused)[:, 0], means, **EXACT)
    whole = network.hidden(src[:1], None, unused[:1])
    torch.testing.assert_close(whole[0, 0], words[0].mean(0), **EXACT)
