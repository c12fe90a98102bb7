"""Words that become single tokens of an existing tokenizer.

A word is appended to the sentencepiece model as a user-defined piece, so that the ids of all other pieces stay the
same.  sentencepiece takes user-defined pieces from the left, the longest first, before it segments the rest; they
cannot be divided.  A piece begins with the space before the word, so that `art` does not change `start`; in scripts
without spaces between words, it does not.
"""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import sentencepiece as spm

from dragoman.errors import check_problems, clip
from dragoman.tokenizers.byte_pieces import BYTES_FILE
from dragoman.tokenizers.json_pieces import TOKENIZER_JSON
from dragoman.tokenizers.listed_pieces import PieceLists
from dragoman.tokenizers.pieces import SPACE
from dragoman.tokenizers.subword_sampling import ADDED_SCORE
from dragoman.tokenizers.tokenizer import Tokenizer

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
    """Add words to both sides of a tokenizer.  Raises UsageError that lists all words that cannot be tokens."""
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
