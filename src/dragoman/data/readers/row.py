"""One row of a table: the texts at the requested keys, or what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from dragoman.errors import clip
from dragoman.io.lines import has_lone_surrogate

Key = str | int
"""Name of a column or, counted from 0, its number."""
Decode = Callable[[bytes, int, str], str]
"""Raw line, its number from 1 and the name of the file -> text (see `decode_line`, which is the default)."""

_BREAKS = re.compile(r"[\t\r\n]+")


class Row(NamedTuple):
    """number: of the row or line, from 1.  where: file and row, for messages.  texts: one per key, () for a problem."""

    number: int
    where: str
    texts: tuple[str, ...] = ()
    problem: str = ""

    @property
    def message(self) -> str:
        """The problem with its location."""
        return f"{self.where}: {self.problem}" if self.where else self.problem


def one_text(value: object, key: Key) -> str:
    """Return a value of a table as one line: line breaks and tabs become a space.

    Raises LookupError that describes a value that is not a valid text.
    """
    if not isinstance(value, str):
        shown = "null" if value is None else f"{clip(repr(value), 40)}, not a string"
        raise LookupError(f"the value at {key!r} is {shown}")
    if has_lone_surrogate(value):
        raise LookupError(f"the text at {key!r} is invalid Unicode (lone surrogate)")
    return _BREAKS.sub(" ", value)


def named_columns(names: list[str]) -> str:
    """Format names of columns for a message."""
    return clip(", ".join(map(repr, names)), 300) or "none"
