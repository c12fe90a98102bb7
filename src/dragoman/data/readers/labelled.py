"""Texts with one label each, and sentences with one tag per word (CoNLL-U files, and text of `word/tag`)."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.errors import DataError, clip
from dragoman.io.lines import read_lines
from dragoman.io.reading import has_lone_surrogate, plain_suffix
from dragoman.tokenizers import BOS, EOS, PAD

_COLUMNS = {"upos": 3, "xpos": 4}


class Example(NamedTuple):
    """A text with its label and line number."""

    label: str
    text: str
    line: int


def read_labelled(path: Path) -> Iterator[Example]:
    """Yield the examples of a file, without blank lines.  The suffix determines the format.

    `.tsv`: label, tab, text.  `.csv`: the label, then columns of text.  `.jsonl`: objects with `label` and `text`.
    Others: label, space, text.  A line end inside a text becomes a space.  Raises DataError naming the invalid line.
    """
    suffix = plain_suffix(path)
    if suffix == ".csv":
        rows = csv.reader((f"{line}\n" for line in read_lines(path)), strict=True)
        try:
            for row in rows:
                where = f"{path}, line {rows.line_num:,}"
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) < 2:
                    raise DataError(f'{where}: one column ("{clip(row[0])}"); accepted: the label, a comma, the text')
                yield _example((row[0], " ".join(row[1:])), where, rows.line_num)
        except csv.Error as error:
            raise DataError(
                f"{path}, line {rows.line_num:,}: not CSV ({error}); correct the quotes of this row"
            ) from None
        return
    parse = {".tsv": _split("\t", "a tab"), ".jsonl": _json}.get(suffix, _split(" ", "a space"))
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            where = f"{path}, line {number:,}"
            yield _example(parse(line, where), where, number)


def _example(fields: tuple[str, str], where: str, line: int) -> Example:
    label, text = (part.replace("\n", " ").strip() for part in fields)  # the command line reads one text per line, too
    for name, value in (("label", label), ("text", text)):
        if has_lone_surrogate(value):
            raise DataError(f"{where}: the {name} is invalid Unicode (lone surrogate); remove it")
        if not value:
            raise DataError(f"{where}: the {name} is empty; fill it in, or remove the line")
    return Example(label, text, line)


def _split(separator: str, name: str) -> Callable[[str, str], tuple[str, str]]:
    def parse(line: str, where: str) -> tuple[str, str]:
        label, found, text = line.partition(separator)
        if not found:
            raise DataError(
                f'{where}: "{clip(line)}" is not a label and a text; accepted in this file: the label, {name}, the '
                "text (.csv and .jsonl files are also supported)"
            )
        return label, text

    return parse


def _json(line: str, where: str) -> tuple[str, str]:
    accepted = 'accepted: an object with "label" (text or a number) and "text"'
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); {accepted}") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise DataError(f'{where}: "{clip(line)}" has no text; {accepted}')
    if not isinstance(row.get("label"), str | int | float):
        raise DataError(f'{where}: "{clip(line)}" has no label; {accepted}')
    return str(row["label"]), row["text"]


def text_source(ids: list[int], pooling: str) -> list[int]:
    """Return the ids of a text, preceded by BOS as class token if the model pools the first position only."""
    return [BOS, *ids] if pooling == "first" else ids


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
