"""Messages about the training of tokenizers."""

from __future__ import annotations

import re
from collections import Counter

import sentencepiece as spm

from dragoman.config import SideTokenizerConfig
from dragoman.data.ids import UNK

__all__ = ["explain_failure", "missing_characters"]


def missing_characters(config: SideTokenizerConfig, key: str, model: bytes, counts: Counter[str]) -> str:
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


def explain_failure(config: SideTokenizerConfig, key: str, message: str) -> str:
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
