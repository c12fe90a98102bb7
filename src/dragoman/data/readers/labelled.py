"""Texts with a label each, in the forms they come in."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.data.tokenizer import BOS
from dragoman.errors import DataError
from dragoman.io.lines import clip, has_half_pair, plain_suffix, read_lines

__all__ = ["Example", "read_labelled", "text_source"]


class Example(NamedTuple):
    """A text, its label, and the line it stands in."""

    label: str
    text: str
    line: int


def read_labelled(path: Path) -> Iterator[Example]:
    """The examples of a file, blank lines left out; the end of its name says what it is.

    `.tsv`: label, tab, text.  `.csv`: label first, the other columns are the text.  `.jsonl`: objects with `label` and
    `text`.  Anything else: label, space, text.  A line end inside counts as a space.  Raises DataError naming the line
    that is not so.
    """
    suffix = plain_suffix(path)
    if suffix == ".csv":
        yield from _csv(path)
        return
    parse = {".tsv": _split("\t", "a tab"), ".jsonl": _json}.get(suffix, _split(" ", "a space"))
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            yield Example(*_checked(parse(line, f"{path}, line {number:,}"), f"{path}, line {number:,}"), number)


def _checked(found: tuple[str, str], where: str) -> tuple[str, str]:
    label, text = (part.replace("\n", " ").strip() for part in found)  # as a line is asked about later
    for name, value in (("label", label), ("text", text)):
        if has_half_pair(value):
            raise DataError(f"{where}: the {name} holds half a surrogate pair, which is no character; take it out")
        if not value:
            raise DataError(f"{where}: the {name} is empty; give one, or take the line out")
    return label, text


def _split(mark: str, name: str) -> Callable[[str, str], tuple[str, str]]:
    def parse(line: str, where: str) -> tuple[str, str]:
        label, found, text = line.partition(mark)
        if not found:
            raise DataError(
                f'{where}: "{clip(line)}" is not a label and a text; accepted here: the label, {name}, the text '
                "(.csv and .jsonl files are read too)"
            )
        return label, text

    return parse


def _json(line: str, where: str) -> tuple[str, str]:
    wanted = 'accepted: an object with "label" (text or a number) and "text"'
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); {wanted}") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise DataError(f'{where}: "{clip(line)}" has no text; {wanted}')
    if not isinstance(row.get("label"), str | int | float):
        raise DataError(f'{where}: "{clip(line)}" has no label; {wanted}')
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
            yield Example(*_checked((row[0], " ".join(row[1:])), where), rows.line_num)
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num:,}: not CSV ({error}); mend the quotes of this row") from None


def text_source(ids: list[int], pooling: str) -> list[int]:
    """Ids of a text with EOS -> with a class token (BOS) in front where the model looks at the first place only."""
    return [BOS, *ids] if pooling == "first" else ids
