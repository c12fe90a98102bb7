"""Plain text for language models: the ids of all texts concatenated, and the windows that a model reads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.io.lines import read_lines
from dragoman.tokenizers import EOS


def read_paragraphs(path: Path) -> Iterator[str]:
    """Yield the paragraphs of a file, which are separated by blank lines, with "\\n" between lines."""
    for has_text, lines in groupby(read_lines(path), key=lambda line: bool(line.strip())):
        if has_text:
            yield "\n".join(lines)


class Ids(Protocol):
    """Token ids, in memory or in a file."""

    def __len__(self) -> int: ...
    def __getitem__(self, span: slice, /) -> NDArray[Any]: ...


@dataclass(frozen=True)
class TextStream:
    """ids: of all texts, concatenated.  bounds: the start of each text, and the end of the last.

    characters: length of the texts, including line ends.
    """

    ids: Ids
    bounds: NDArray[np.int64]
    characters: int

    def spans(self, block: int, offset: int = 0) -> NDArray[np.int64]:
        """Return windows (start, end) of at most `block` ids that cover every id once and stay within one text.

        offset: length of the first window of each text; 0 means `block`.
        """
        begins, ends = self.bounds[:-1], self.bounds[1:]
        first = offset or block
        # Windows after the first of each text, rounded up.
        counts = np.where(ends > begins, 1 + np.maximum(0, -((begins + first - ends) // block)), 0)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # of the window in its text
        text_begins = np.repeat(begins, counts)
        starts = text_begins + np.where(number > 0, first + (number - 1) * block, 0)
        stops = np.minimum(text_begins + first + number * block, np.repeat(ends, counts))
        return np.stack([starts, stops], axis=1).astype(np.int64)

    def window(self, span: NDArray[np.int64]) -> list[int]:
        """Return the ids of a window."""
        ids: list[int] = self.ids[span[0] : span[1]].tolist()
        return ids


def texts_of(paths: Iterable[Path], form: str, encode: Callable[[str], list[int]]) -> Iterator[tuple[list[int], int]]:
    """Yield the ids and the number of characters, including line ends, of texts in files.

    form: "lines" and "paragraphs" make each line or paragraph a text that ends with EOS; "stream" makes all files one
    text, including blank lines, of which the lines are yielded.  encode: text -> ids without EOS.  Raises DataError as
    `read_lines` does.
    """
    for path in paths:
        for text in read_paragraphs(path) if form == "paragraphs" else read_lines(path):
            if form == "stream":
                yield encode(f"{text}\n"), len(text) + 1
            elif text.strip():
                yield [*encode(text), EOS], len(text) + 1


def read_stream(paths: Iterable[Path], form: str, encode: Callable[[str], list[int]]) -> TextStream:
    """Return the ids of files in memory; see `texts_of`."""
    ids, bounds, characters = array("I"), array("q", [0]), 0
    for found, length in texts_of(paths, form, encode):
        ids.extend(found)
        characters += length
        if form != "stream":
            bounds.append(len(ids))
    if form == "stream" and ids:
        bounds.append(len(ids))
    return TextStream(np.array(ids, dtype=np.uint32), np.array(bounds, dtype=np.int64), characters)
