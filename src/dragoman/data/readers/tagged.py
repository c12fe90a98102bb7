"""Sentences with one tag per word: CoNLL-U files, and text of `word/tag`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.data.ids import BOS, EOS, PAD
from dragoman.errors import DataError, clip
from dragoman.io.lines import plain_suffix, read_lines

__all__ = ["TaggedSentence", "read_tagged", "tagged_row"]

_COLUMNS = {"upos": 3, "xpos": 4}


class TaggedSentence(NamedTuple):
    """Words, their tags, and the number of the first line."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int


def read_tagged(path: Path, column: str = "upos") -> Iterator[TaggedSentence]:
    """Yield the sentences of a file: `.conllu` with tags in `column` ("upos" or "xpos"), else a `word/tag` line each.

    Raises DataError naming the invalid line.
    """
    return _conllu(path, column) if plain_suffix(path) == ".conllu" else _slashed(path)


def _conllu(path: Path, column: str) -> Iterator[TaggedSentence]:
    """Read CoNLL-U: ten columns per word, a blank line after each sentence.

    Multiword tokens ("3-4") and empty nodes ("3.1") are skipped.
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
        where = f"{path}, line {number:,}"
        if len(fields) != 10:
            raise DataError(
                f'{where}: {len(fields)} columns; accepted: the 10 of CoNLL-U, tab-separated: "{clip(line)}"'
            )
        if not fields[0].isdigit():
            if fields[0].replace("-", "").replace(".", "").isdigit():
                continue
            raise DataError(f'{where}: column 1 is "{fields[0]}"; accepted: the number of a word')
        if fields[_COLUMNS[column]] == "_":
            raise DataError(
                f'{where}: "{fields[1]}" has no tag in the column {column}; choose another with data.column, one of '
                f"{', '.join(_COLUMNS)}"
            )
        begin = begin if words else number
        words.append((fields[1], fields[_COLUMNS[column]]))
    if words:
        yield _sentence(words, begin)


def _slashed(path: Path) -> Iterator[TaggedSentence]:
    """Read lines such as `The/at dog/nn`; the tag follows the last slash."""
    for number, line in enumerate(read_lines(path), start=1):
        words = []
        for token in line.split():
            word, slash, tag = token.rpartition("/")
            if not (word and slash and tag):
                raise DataError(
                    f'{path}, line {number:,}: "{clip(token)}" is not word/tag; accepted: one sentence per line, each '
                    "word followed by a slash and its tag, or a CoNLL-U file with the suffix .conllu"
                )
            words.append((word, tag))
        if words:
            yield _sentence(words, number)


def _sentence(words: list[tuple[str, str]], line: int) -> TaggedSentence:
    return TaggedSentence(tuple(w for w, _ in words), tuple(t for _, t in words), line)


def tagged_row(pieces: Sequence[Sequence[int]], tags: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return BOS, the pieces of all words, EOS; and equally many labels: tags at first pieces, PAD elsewhere."""
    ids, labels = [BOS], [PAD]
    for word, tag in zip(pieces, tags, strict=True):
        ids.extend(word)
        labels.extend([tag, *[PAD] * (len(word) - 1)])
    return [*ids, EOS], [*labels, PAD]
