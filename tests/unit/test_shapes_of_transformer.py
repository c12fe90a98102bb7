"""Decoder-only and encoder-only Transformers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.config import DecoderOnlyConfig, EncoderOnlyConfig
from dragoman.decoding import Hypothesis, ModelStepper, SearchSettings, generate
from dragoman.errors import UsageError
from dragoman.models.build import build_model
from dragoman.models.seq2seq import EncoderOnly
from dragoman.models.transformer import DecoderOnly
from dragoman.nn.attention import Span, causal_bias
from dragoman.tokenizers import BOS, EOS, PAD
from dragoman.training.loss import TokenLoss
from small_networks import EXACT, SIZES, VARIANTS, D, learn, shaken

B, S, T, V = 4, 7, 6, 19


def nothing(count: int) -> Tensor:
    """The empty source of a decoder-only model."""
    return torch.zeros(count, 0, dtype=torch.long)


# ------------------------------------------------------------------------------------------------------ decoder only


def decoder_only(variant: str = "paper", vocab: int = V, **changes: Any) -> DecoderOnly:
    config = DecoderOnlyConfig.model_validate(SIZES | VARIANTS[variant] | changes)
    model = shaken(build_model(config, vocab, vocab))
    assert isinstance(model, DecoderOnly)
    return model


def texts(rows: int, length: int = T) -> Tensor:
    ids = torch.randint(EOS + 1, V, (rows, length))
    ids[:, 0] = BOS
    return ids


@pytest.mark.parametrize("variant", ["paper", "gpt-2", "llama"])
def test_it_is_the_layers_of_an_encoder_under_a_causal_mask(variant: str) -> None:
    model, ids, pos = decoder_only(variant), texts(B), torch.arange(T)
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


def go_on(model: DecoderOnly, prefixes: list[list[int]], **settings: Any) -> list[list[Hypothesis]]:
    return generate(ModelStepper(model), nothing(len(prefixes)), None, SearchSettings(**settings), prefixes)


def test_a_decoder_only_model_learns_to_continue_a_pattern() -> None:
    """A text counts up from any digit, in steps of 1 or 2 as given by its first two tokens."""
    rng, first = random.Random(1), EOS + 1

    def text(begin: int, step: int) -> list[int]:
        return [first + (begin + step * i) % 10 for i in range(8)]

    def batch() -> tuple[Tensor, Tensor | None, Tensor]:
        return nothing(32), None, torch.tensor([text(rng.randrange(10), rng.randint(1, 2)) for _ in range(32)])

    config = DecoderOnlyConfig(d_model=32, d_ff=64, n_heads=4, n_layers=2, dropout=0.0, order="pre")
    model = build_model(config, first + 10, first + 10)
    assert isinstance(model, DecoderOnly)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        src, _, targets = batch()
        inputs = torch.cat([torch.full_like(targets[:, :1], BOS), targets[:, :-1]], dim=1)
        loss = model(src, None, inputs, TokenLoss(targets, 0.0))
        optimizer.zero_grad()
        (loss.smoothed / loss.tokens).backward()
        optimizer.step()
    whole = [text(begin, step) for begin in range(10) for step in (1, 2)]
    found = go_on(model.eval(), [one[:2] for one in whole], beam=1, max_extra=7)
    assert [best.tokens[:8] for (best,) in found] == whole


# ------------------------------------------------------------------------------------------------------ encoder only


def encoder_only(variant: str, pooling: str) -> EncoderOnly:
    kind = {"position": {"kind": "t5", "buckets": 8, "max_distance": 20}} if variant == "t5" else VARIANTS[variant]
    config = EncoderOnlyConfig.model_validate(SIZES | kind | {"pooling": pooling})
    network = shaken(build_model(config, V, 5))
    assert isinstance(network, EncoderOnly)
    return network


def sentences() -> tuple[Tensor, Tensor]:
    src = torch.randint(EOS + 1, V, (B, S))
    mask = torch.arange(S) < torch.tensor([S, 3, 5, 1])[:, None]
    return src.masked_fill(~mask, PAD), mask


def test_pooling_takes_the_first_vector_or_the_mean_over_words() -> None:
    network, (src, mask) = encoder_only("paper", "none"), sentences()
    unused = torch.zeros(B, 1, dtype=torch.long)
    words = network.hidden(src, mask, unused)
    network.pooling = "first"
    torch.testing.assert_close(network.hidden(src, mask, unused), words[:, :1], **EXACT)
    network.pooling = "mean"
    means = torch.stack([words[row, :length].mean(0) for row, length in enumerate((S, 3, 5, 1))])
    torch.testing.assert_close(network.hidden(src, mask, unused)[:, 0], means, **EXACT)
    whole = network.hidden(src[:1], None, unused[:1])
    torch.testing.assert_close(whole[0, 0], words[0].mean(0), **EXACT)


def test_a_tagger_is_learned_that_needs_both_neighbours() -> None:
    """Label 1 + (previous word + next word) mod 3, with 0 outside the sentence."""
    rng, words = random.Random(3), 5

    def batch() -> tuple[Tensor, Tensor | None, Tensor]:
        rows = [[rng.randrange(words) for _ in range(rng.randint(3, S))] for _ in range(48)]
        src, targets = torch.full((48, S), PAD), torch.full((48, S), PAD)
        for i, row in enumerate(rows):
            around = [0, *row, 0]
            src[i, : len(row)] = torch.tensor(row) + EOS + 1
            targets[i, : len(row)] = torch.tensor([1 + (a + b) % 3 for a, b in zip(around, around[2:], strict=False)])
        return src, src != PAD, targets

    config = EncoderOnlyConfig.model_validate(
        {"d_model": 48, "d_ff": 96, "n_heads": 4, "n_layers": 2, "dropout": 0.0, "order": "pre"}
        | {"position": {"kind": "rotary"}}
    )
    network = build_model(config, EOS + 1 + words, 4)
    learn(network, batch, 350)
    src, mask, targets = batch()
    right = network(src, mask, targets).argmax(-1) == targets
    assert int(right[targets != PAD].sum()) >= 0.97 * int((targets != PAD).sum())
