"""Training of sentencepiece tokenizers on raw text."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import sentencepiece as spm

from dragoman.config import SideTokenizerConfig, TokenizerConfig
from dragoman.errors import DataError
from dragoman.tokenizers.ids import BOS, EOS, PAD, UNK
from dragoman.tokenizers.tokenizer import ROLE_PREFIX, Tokenizer

Log = Callable[[str], None]
_LOSSLESS: dict[str, Any] = {
    "user_defined_symbols": ["\n"],
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
}


def train_tokenizer(
    config: TokenizerConfig, source: Iterable[str], target: Iterable[str], log: Log | None = None
) -> Tokenizer:
    """Train on the sentences of both sides.

    log: receives a warning about characters that the vocabulary lacks.  Raises DataError if the text does not allow
    `vocab_size`.
    """
    sides = iter(source), iter(target)
    if config.shared:
        return Tokenizer(_train(config, chain(*sides), log=log))
    keys = ("tokenizer", "tokenizer.target" if config.target else "tokenizer")
    return Tokenizer(
        *(_train(side, lines, key=key, log=log) for side, lines, key in zip(config.sides, sides, keys, strict=True))
    )


def learn_tokenizer(
    config: TokenizerConfig,
    lines: Iterable[str],
    lossless: bool = False,
    roles: Sequence[str] = (),
    log: Log | None = None,
) -> Tokenizer:
    """Train one vocabulary on lines of text.  Raises DataError as `train_tokenizer` does.

    lossless: preserve every line end and space, for language models.  roles: of a dialogue, see `Tokenizer.roles`.
    log: as for `train_tokenizer`.
    """
    return Tokenizer(_train(config, iter(lines), lossless, roles, log=log))


def _train(
    config: SideTokenizerConfig,
    lines: Iterator[str],
    lossless: bool = False,
    roles: Sequence[str] = (),
    key: str = "tokenizer",
    log: Log | None = None,
) -> bytes:
    """Return a serialized sentencepiece model.  key: the section of the configuration, for error messages."""
    model = io.BytesIO()
    characters = config.kind == "char"
    counts: Counter[str] = Counter()
    if log is not None and characters and not config.byte_fallback:
        lines = _counted(lines, counts)
    try:
        spm.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity" if characters else config.normalization,
            character_coverage=config.character_coverage,
            input_sentence_size=config.sentences,
            shuffle_input_sentence=True,
            max_sentence_length=1_000_000,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            hard_vocab_limit=True,
            num_threads=1,  # makes the vocabulary deterministic
            minloglevel=2,
            control_symbols=[
                f"{ROLE_PREFIX}{role}>" for role in roles
            ],  # unlike user-defined symbols, never found in text
            **(_LOSSLESS if lossless or characters else {}),
        )
    except (RuntimeError, OSError) as error:
        raise DataError(_explain_failure(config, key, str(error))) from None
    if log is not None and (missing := _missing_characters(config, key, model.getvalue(), counts)):
        log(missing)
    return model.getvalue()


def _counted(lines: Iterator[str], counts: Counter[str]) -> Iterator[str]:
    for line in lines:
        counts.update(line)
        yield line


def _missing_characters(config: SideTokenizerConfig, key: str, model: bytes, counts: Counter[str]) -> str:
    """Return a warning about the counted characters that a model maps to <unk>; "" if there are none."""
    processor = spm.SentencePieceProcessor(model_proto=model)
    missing = [character for character in counts if UNK in processor.encode(character)]
    if not missing:
        return ""
    part = sum(counts[character] for character in missing) / counts.total()
    full = processor.get_piece_size() == config.vocab_size
    setting = f"vocab_size (now {config.vocab_size:,})" if full else f"character_coverage ({config.character_coverage})"
    return (
        f"{len(missing):,} of {len(counts):,} characters ({part:.2g} of the text) are not in the vocabulary "
        f"and become <unk>; increase {key}.{setting}, or set {key}.byte_fallback=true"
    )


def _explain_failure(config: SideTokenizerConfig, key: str, message: str) -> str:
    """Return what is wrong, and what to do, for an error of sentencepiece."""
    smaller = re.search(r"Please set it to a value <= (\d+)", message)
    if smaller:
        return (
            f"{key}.vocab_size = {config.vocab_size} is more than this text allows; accepted: at most {smaller[1]}."
            f" Set {key}.vocab_size={smaller[1]} or provide more text."
        )
    larger = re.search(r"smaller than required_chars\. (\d+) vs (\d+)", message)
    if larger:
        return (
            f"{key}.vocab_size = {config.vocab_size} is less than the {larger[2]} characters and symbols of this "
            f"text; increase it, or lower {key}.character_coverage (now {config.character_coverage})."
        )
    if config.kind == "char" and config.byte_fallback and "vocab_size" in message:
        return (
            f"{key}.vocab_size = {config.vocab_size} is less than 256 bytes and 5 symbols; accepted: at least 261, and "
            f"one more per character. Increase it, or set {key}.byte_fallback=false."
        )
    return f"[{key}] could not be trained (kind = {config.kind}, vocab_size = {config.vocab_size}): {message}"
