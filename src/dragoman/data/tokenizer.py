"""Raw text in, token ids out, and back: sentencepiece, trained from the raw text by the `train` command."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece as spm

from dragoman.config import TokenizerConfig
from dragoman.data.ids import BOS, EOS, PAD, UNK
from dragoman.data.resegment import Resegmenter
from dragoman.errors import DataError, ModelFolderError
from dragoman.io.reading import read_bytes

__all__ = ["BOS", "EOS", "PAD", "UNK", "Tokenizer", "learn_tokenizer", "train_tokenizer"]

_COPY_AGAIN = "Copy the folder again, whole."
_LARGEST = 1 << 28
"""Largest sentencepiece model that is read, in bytes; one of 256,000 pieces takes some 5 MB."""


class Tokenizer:
    """One vocabulary for both sides, or one a side.  Ids of a sentence end with EOS; BOS is the search's business."""

    def __init__(self, source: bytes, target: bytes | None = None) -> None:
        """source, target: serialized sentencepiece models; target None = shared."""
        self._models = (source, target)
        self.shared = target is None
        self._source = spm.SentencePieceProcessor(model_proto=source)
        self._target = self._source if target is None else spm.SentencePieceProcessor(model_proto=target)

    @property
    def source_size(self) -> int:
        return int(self._source.get_piece_size())

    @property
    def target_size(self) -> int:
        return int(self._target.get_piece_size())

    def encode_source(self, text: str) -> list[int]:
        """Token ids, EOS last."""
        return [*self._source.encode(text), EOS]

    def encode_target(self, text: str) -> list[int]:
        """Token ids, EOS last."""
        return [*self._target.encode(text), EOS]

    def encode_sampled(
        self, pairs: Sequence[tuple[str, str]], rate: float, seed: int
    ) -> list[tuple[list[int], list[int]]]:
        """Another segmentation each time, the same for the same seed in every process (`Resegmenter.draw`)."""
        rng = random.Random(seed)
        return [
            ([*self._source_sampler.draw(src, rate, rng), EOS], [*self._target_sampler.draw(tgt, rate, rng), EOS])
            for src, tgt in pairs
        ]

    def encode_word(self, word: str) -> list[int]:
        """The pieces of a source word by itself, at least one."""
        ids: list[int] = self._source.encode(word)
        return ids or [UNK]

    def sample_sources(self, texts: Iterable[str], rate: float, rng: random.Random) -> list[list[int]]:
        """The pieces of each source word or text, at least one, segmented anew each time (`Resegmenter.draw`)."""
        return [self._source_sampler.draw(text, rate, rng) or [UNK] for text in texts]

    @cached_property
    def _source_sampler(self) -> Resegmenter:
        return Resegmenter(self._source)

    @cached_property
    def _target_sampler(self) -> Resegmenter:
        return self._source_sampler if self.shared else Resegmenter(self._target)

    def decode_target(self, ids: Sequence[int]) -> str:
        """Text of token ids; special ids are left out."""
        return str(self._target.decode([i for i in ids if i > EOS or i == UNK]))

    def source_piece(self, token: int) -> str:
        return str(self._source.id_to_piece(token))

    def target_piece(self, token: int) -> str:
        return str(self._target.id_to_piece(token))

    def files(self) -> dict[str, bytes]:
        """File name -> content, as a model folder holds them."""
        source, target = self._models
        return {"tokenizer.model": source} if target is None else {"source.model": source, "target.model": target}

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a model folder.  Raises `ModelFolderError` where there is none."""
        names = ["tokenizer.model"]
        if not os.path.lexists(folder / names[0]):
            names = ["source.model", "target.model"]
        if not all(os.path.lexists(folder / name) for name in names):
            raise ModelFolderError(
                f"{folder}: no tokenizer; a model folder holds tokenizer.model, or source.model and target.model"
            )
        models = [read_bytes(folder / name, ModelFolderError, _COPY_AGAIN, _LARGEST) for name in names]
        try:
            tokenizer = cls(*models)
            sizes = tokenizer.source_size, tokenizer.target_size
        except RuntimeError as error:
            raise ModelFolderError(
                f"{folder}: {' and '.join(names)} cannot be read by sentencepiece: {error}. {_COPY_AGAIN}"
            ) from None
        special = [[m.pad_id(), m.unk_id(), m.bos_id(), m.eos_id()] for m in (tokenizer._source, tokenizer._target)]
        if min(sizes) <= EOS or any(ids != [PAD, UNK, BOS, EOS] for ids in special):
            raise ModelFolderError(
                f"{folder}: {' and '.join(names)} cannot be used: the ids of padding, unknown, begin and end are "
                f"{special[0]} and {special[1]}; accepted: {[PAD, UNK, BOS, EOS]}. {_COPY_AGAIN}"
            )
        return tokenizer


def train_tokenizer(config: TokenizerConfig, source: Path, target: Path) -> Tokenizer:
    """Learn the vocabulary from two plain text files, one sentence a line.

    Raises `DataError` when the text has too few distinct pieces for `vocab_size`.
    """
    if config.shared:
        return Tokenizer(_train(config, itertools.chain(_lines(source), _lines(target))))
    return Tokenizer(_train(config, _lines(source)), _train(config, _lines(target)))


def _lines(path: Path) -> Iterator[str]:
    # Given the file itself, sentencepiece would write its path into the model.
    with path.open("rb") as file:
        for line in file:
            yield line.removesuffix(b"\n").decode("utf-8")


def learn_tokenizer(config: TokenizerConfig, lines: Sequence[str], whole: bool = False) -> Tokenizer:
    """Learn one vocabulary from lines of text.  Raises `DataError` as `train_tokenizer` does.

    whole: for text that comes back with every line end and space where it was, as language models write it.
    """
    return Tokenizer(_train(config, iter(lines), whole))


def _train(config: TokenizerConfig, lines: Iterator[str], whole: bool = False) -> bytes:
    import io

    model = io.BytesIO()
    letters = config.kind == "char"
    exact: dict[str, Any] = {
        "user_defined_symbols": ["\n"],
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
    }
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity" if letters else config.normalization,
            character_coverage=config.character_coverage,
            input_sentence_size=config.sentences,
            shuffle_input_sentence=True,
            max_sentence_length=1_000_000,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            hard_vocab_limit=True,
            num_threads=1,  # so that the same text always gives the same vocabulary
            minloglevel=2,
            **(exact if whole or letters else {}),
        )
    except (RuntimeError, OSError) as error:
        raise DataError(_explain(config, str(error))) from None
    return model.getvalue()


def _explain(config: TokenizerConfig, message: str) -> str:
    import re

    smaller = re.search(r"Please set it to a value <= (\d+)", message)
    if smaller:
        return (
            f"tokenizer.vocab_size = {config.vocab_size} is more than this text allows; accepted: at most "
            f"{smaller[1]}. "
            f"Set tokenizer.vocab_size={smaller[1]} or give more text."
        )
    larger = re.search(r"smaller than required_chars\. (\d+) vs (\d+)", message)
    if larger:
        return (
            f"tokenizer.vocab_size = {config.vocab_size} is less than the {larger[2]} characters and symbols this text "
            f"needs; raise it, or lower tokenizer.character_coverage (now {config.character_coverage})."
        )
    return f"the tokenizer could not be trained (vocab_size = {config.vocab_size}, kind = {config.kind}): {message}"
