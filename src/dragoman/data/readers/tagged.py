"""Sentences with a tag a word: CoNLL-U files, and text of `word/tag`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.data.tokenizer import BOS, EOS, PAD
from dragoman.errors import DataError
from dragoman.io.lines import clip, plain_suffix, read_lines

__all__ = ["TaggedSentence", "read_tagged", "tagged_row"]

_COLUMNS = {"upos": 3, "xpos": 4}


class TaggedSentence(NamedTuple):
    """Words, as many tags, and the line the sentence begins in."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int


def read_tagged(path: Path, column: str = "upos") -> Iterator[TaggedSentence]:
    """The sentences of a file: `.conllu` with the tag in `column` ("upos" or "xpos"), else one a line as `word/tag`.

    Raises DataError naming the line that is not so.
    """
    return _conllu(path, column) if plain_suffix(path) == ".conllu" else _slashed(path)


def _conllu(path: Path, column: str) -> Iterator[TaggedSentence]:
    """CoNLL-U: ten columns a word, a blank line behind a sentence.

    Only words are taken, not the ranges ("3-4") and empty nodes ("3.1") that stand between them.
    """
    words: list[tuple[str, str]] = []
    begin = 0
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith("#") or not line.strip():
            if words and not line.startswith("#"):
                yield _sentence(words, begin)
                words = []
            continue
        fields = line.split("\t")
        if len(fields) != 10:
            raise DataError(
                f'{path}, line {number:,}: {len(fields)} columns where CoNLL-U has 10, parted by tabs: "{clip(line)}"'
            )
        if not fields[0].isdigit():
            if fields[0].replace("-", "").replace(".", "").isdigit():
                continue
            raise DataError(f'{path}, line {number:,}: a word\'s number is expected in column 1, not "{fields[0]}"')
        if fields[_COLUMNS[column]] == "_":
            raise DataError(
                f'{path}, line {number:,}: "{fields[1]}" has no tag in the column {column}; choose the other with '
                f"data.column, one of {', '.join(_COLUMNS)}"
            )
        begin = begin if words else number
        words.append((fields[1], fields[_COLUMNS[column]]))
    if words:
        yield _sentence(words, begin)


def _slashed(path: Path) -> Iterator[TaggedSentence]:
    """`The/at dog/nn`; the tag is what follows the last slash."""
    for number, line in enumerate(read_lines(path), start=1):
        words = []
        for token in line.split():
            word, slash, tag = token.rpartition("/")
            if not (word and slash and tag):
                raise DataError(
                    f'{path}, line {number:,}: "{clip(token)}" is not word/tag; accepted: a sentence a line, each word '
                    "with a slash and its tag, or a CoNLL-U file whose name ends with .conllu"
                )
            words.append((word, tag))
        if words:
            yield _sentence(words, number)


def _sentence(words: list[tuple[str, str]], line: int) -> TaggedSentence:
    return TaggedSentence(tuple(w for w, _ in words), tuple(t for _, t in words), line)


def tagged_row(pieces: Sequence[Sequence[int]], tags: Sequence[int]) -> tuple[list[int], list[int]]:
    """Words as pieces -> BOS, all pieces, EOS; and as many numbers: a tag at each word's first piece, else PAD."""
    ids, labels = [BOS], [PAD]
    for word, tag in zip(pieces, tags, strict=True):
        ids.extend(word)
        labels.extend([tag, *[PAD] * (len(word) - 1)])
    return [*ids, EOS], [*labels, PAD]
