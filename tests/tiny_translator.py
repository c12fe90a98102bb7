"""A tokenizer and models small enough for property tests."""

from __future__ import annotations

import functools

import torch

from dragoman.config import RotaryPosition, TokenizerConfig, TransformerConfig
from dragoman.decoding import SearchSettings
from dragoman.models.build import build_model
from dragoman.models.seq2seq import Model
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import Tokenizer, train_tokenizer
from small_run import digit_pairs
from toy_model import CopyModel


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    """310 pieces, one for every byte among them."""
    pairs = digit_pairs(90)
    return train_tokenizer(TokenizerConfig(vocab_size=310, byte_fallback=True), *zip(*pairs, strict=True))


def tiny_transformer(vocab: int, seed: int = 5, rotary: bool = False, contrast: float = 3.0) -> Model:
    """1 + 2 layers of width 12, not trained; the larger `contrast`, the surer it is of what it says."""
    config = TransformerConfig(d_model=12, d_ff=20, n_heads=2, encoder_layers=1, decoder_layers=2)
    if rotary:
        config = config.model_copy(update={"position": RotaryPosition()})
    model = build_model(config, vocab, vocab, seed=seed).eval()
    with torch.no_grad():
        model.output.weight.mul_(contrast)
    return model


def tiny_translator(max_source: int = 40, **settings: int | float | bool) -> Translator:
    """An untrained Transformer."""
    tokenizer = tiny_tokenizer()
    search = SearchSettings(**{"beam": 3, "max_extra": 4, **settings})  # type: ignore[arg-type]
    return Translator(tiny_transformer(tokenizer.target_size), tokenizer, search, max_source)


def copying_translator(max_source: int = 40, says: str | None = None, **settings: int | float | bool) -> Translator:
    """A translator whose translation is its source, or the piece `says` for ever."""
    tokenizer = tiny_tokenizer()
    search = SearchSettings(**{"beam": 1, "max_extra": 4, **settings})  # type: ignore[arg-type]
    pieces = [tokenizer.target_piece(token) for token in range(tokenizer.target_size)]
    model = CopyModel(tokenizer.target_size, None if says is None else pieces.index(says))
    return Translator(model, tokenizer, search, max_source)


def round_trip(text: str) -> str:
    """What the tokenizer makes of a text: the best that a copying model can say."""
    tokenizer = tiny_tokenizer()
    return tokenizer.decode_target(tokenizer.encode_target(text)).replace("\n", " ").replace("\r", " ")
