"""Training of sentencepiece tokenizers on raw text, and addition of words to them."""

from __future__ import annotations

import io
import re
import struct
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import sentencepiece as spm

from dragoman.config import SideTokenizerConfig, TokenizerConfig
from dragoman.errors import DataError, check_problems, clip
from dragoman.tokenizers.json_pieces import TOKENIZER_JSON
from dragoman.tokenizers.listed_pieces import PieceLists
from dragoman.tokenizers.pieces import ADDED_SCORE, BOS, BYTES_FILE, EOS, PAD, SPACE, UNK
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


_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_USER_DEFINED = 4  # of the enumeration ModelProto.SentencePiece.Type
_LONGEST = 200


@dataclass(frozen=True)
class AddedWords:
    """A tokenizer with added words.

    source, target: for each new id of a side, in order, the ids of the segmentation that it replaces.  present: words
    that were single tokens already, on both sides.
    """

    tokenizer: Tokenizer
    source: list[list[int]]
    target: list[list[int]]
    present: list[str]


def add_words(tokenizer: Tokenizer, words: Sequence[str]) -> AddedWords:
    """Add words to both sides of a tokenizer as single tokens.  Raises UsageError that lists all words that cannot be.

    A word is appended to the sentencepiece model as a user-defined piece, so that the ids of all other pieces stay the
    same.  sentencepiece takes user-defined pieces from the left, the longest first, before it segments the rest; they
    cannot be divided.  A piece begins with the space before the word, so that `art` does not change `start`; in scripts
    without spaces between words, it does not.
    """
    source, target, lists, templates = tokenizer.models
    others = sorted(name for name in tokenizer.files() if name in (BYTES_FILE, TOKENIZER_JSON))
    refused = [f"the tokenizer is {name}; accepted: sentencepiece models" for name in others]
    check_problems("tokenizer.add_words:", refused or [*_problems(words)])
    models = [source] if target is None else [source, target]
    added = [_new_pieces(model, words) for model in models]
    extended = [model + b"".join(map(_serialized, new)) for model, new in zip(models, added, strict=True)]
    pieces = None if lists is None else _extended_lists(PieceLists.parse(lists), added[0], added[-1]).file()
    result = Tokenizer(extended[0], None if target is None else extended[1], pieces, templates)
    old, new = Tokenizer(source, target, lists), result  # the old one without the languages around a text
    sides = (
        [
            _before(new.source_piece(i), old.encode_source, old.source_piece)
            for i in range(old.source_size, new.source_size)
        ],
        [
            _before(new.target_piece(i), old.encode_target, old.target_piece)
            for i in range(old.target_size, new.target_size)
        ],
    )
    present = [word for word in words if len(old.encode_source(word)) == 2 == len(old.encode_target(word))]
    return AddedWords(result, *sides, present)


def _problems(words: Sequence[str]) -> Iterator[str]:
    for i, word in enumerate(words):
        if not word.strip() or len(word) > _LONGEST or not word.strip().replace(" ", "x").isprintable():
            yield f"{clip(word)!r} cannot be a token; accepted: printable text of 1 to {_LONGEST} characters"
        elif word in words[:i]:
            yield f"{clip(word)!r} is listed twice; remove one of both"


def _new_pieces(model: bytes, words: Sequence[str]) -> list[str]:
    """Return the pieces that a sentencepiece model lacks, each once."""
    processor = spm.SentencePieceProcessor(model_proto=model)
    known = {str(processor.id_to_piece(i)) for i in range(processor.get_piece_size())}
    return [piece for piece in dict.fromkeys(_piece(processor, word) for word in words) if piece not in known]


def _piece(processor: spm.SentencePieceProcessor, word: str) -> str:
    """Return the piece of a word: normalized, as the text in which it is searched."""
    piece = str(processor.normalize(word.strip())).replace(" ", SPACE).strip(SPACE)
    return piece if unicodedata.name(piece[:1], "").startswith(_UNSPACED) else SPACE + piece


def _serialized(piece: str) -> bytes:
    """Return a field `pieces` of sentencepiece's ModelProto; a message may be extended by appending fields."""
    text = piece.encode()
    message = b"\x0a" + _varint(len(text)) + text + b"\x15" + struct.pack("<f", ADDED_SCORE)
    message += b"\x18" + _varint(_USER_DEFINED)
    return b"\x0a" + _varint(len(message)) + message


def _varint(number: int) -> bytes:
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + _varint(high) if high else bytes([low])


def _extended_lists(lists: PieceLists, source: Sequence[str], target: Sequence[str]) -> PieceLists:
    """Append the new pieces of each side to its list; one list for both sides gets those of both."""

    def appended(listed: list[str], new: Sequence[str]) -> list[str]:
        return list(dict.fromkeys([*listed, *new]))

    if lists.target is None:
        return replace(lists, source=appended(lists.source, [*source, *target]))
    return replace(lists, source=appended(lists.source, source), target=appended(lists.target, target))


def _before(piece: str, encode: Callable[[str], list[int]], name: Callable[[int], str]) -> list[int]:
    """Return the ids into which a tokenizer segments a new piece, without EOS."""
    ids = encode(piece.replace(SPACE, " "))[:-1]
    has_space = len(ids) > 1 and name(ids[0]) == SPACE and not piece.startswith(SPACE)
    return ids[1:] if has_space else ids
