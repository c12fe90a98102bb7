"""Texts with one label each."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.data.ids import BOS
from dragoman.errors import DataError, clip
from dragoman.io.lines import has_lone_surrogate, plain_suffix, read_lines

__all__ = ["Example", "read_labelled", "text_source"]


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
        yield from _csv(path)
        return
    parse = {".tsv": _split("\t", "a tab"), ".jsonl": _json}.get(suffix, _split(" ", "a space"))
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            where = f"{path}, line {number:,}"
            yield _example(parse(line, where), where, number)


def _example(found: tuple[str, str], where: str, line: int) -> Example:
    label, text = (part.replace("\n", " ").strip() for part in found)  # the command line reads one text per line, too
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


def _csv(path: Path) -> Iterator[Example]:
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
        raise DataError(f"{path}, line {rows.line_num:,}: not CSV ({error}); correct the quotes of this row") from None


def text_source(ids: list[int], pooling: str) -> list[int]:
    """Return the ids of a text, with BOS as class token in front if the model pools the first position only."""
    return [BOS, *ids] if pooling == "first" else ids
