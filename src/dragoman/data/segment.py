"""Splitting of text that is too long for a model, and joining of the translations of its parts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise

from dragoman.data.sentences import split_sentences

_QUOTES = "\"'“”‘’"
_SPACELESS = (("\u3000", "\u30ff"), ("\u3400", "\u9fff"), ("\uff00", "\uffef"), ("\U00020000", "\U0003ffff"))
_CLAUSE_END = re.compile(r"(?<=[,;:–—、，；：])\s+|[、，；：]\s*")
_SPACE = re.compile(r"\s+")

Cut = Callable[[str], list[str]]


def _split_clauses(text: str) -> list[str]:
    return _cut_at(text, [match.end() for match in _CLAUSE_END.finditer(text)])


def _split_words(text: str) -> list[str]:
    return _cut_at(text, [match.end() for match in _SPACE.finditer(text)])


def _cut_at(text: str, ends: Sequence[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)]) if start < end]


_CUTS: tuple[Cut, ...] = (split_sentences, _split_clauses, _split_words)
"""Functions that cut a text into pieces whose concatenation is the text, in order of preference."""


def split_text(text: str, limit: int, count: Callable[[str], int], cuts: Sequence[Cut] = _CUTS) -> list[str]:
    """Return parts of at most `limit` tokens each, so that `"".join(parts) == text`.

    count: returns the number of tokens of a part, including the end of sentence.  cuts: functions that cut a text into
    pieces, in order of preference.  Consecutive sentences share a part while they fit; a sentence that is too long is
    split at clause marks, then at spaces, then at any position.  A single character is never split.
    """
    if len(text) <= 1 or count(text) <= limit:
        return [text]
    pieces = cuts[0](text) if cuts else _halves(text)
    return _pack([part for piece in pieces for part in split_text(piece, limit, count, cuts[1:])], limit, count)


def _pack(parts: list[str], limit: int, count: Callable[[str], int]) -> list[str]:
    groups: list[list[str]] = []
    room = 0
    for part in parts:
        size = count(part) - 1  # the end of sentence counts once per group
        if not groups or size > room:
            groups.append([])
            room = limit - 1
        groups[-1].append(part)
        room -= size
    packed: list[str] = []
    for group in groups:
        joined = "".join(group)
        # In rare cases the joined text has more tokens than its parts together; the parts then remain separate.
        packed += [joined] if len(group) == 1 or count(joined) <= limit else group
    return packed


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    last = min(middle + 8, len(text) - 1)
    while middle < last and unicodedata.combining(text[middle]):
        middle += 1  # do not separate a combining accent from its letter
    return [text[:middle], text[middle:]]


def join_parts(sources: Sequence[str], targets: Sequence[str], *, keep_space: bool = False) -> str:
    """Join the translations of consecutive parts.

    Two translations are joined with a space if there is whitespace between their sources, or if only the target script
    uses spaces.  keep_space: use the whitespace of the source instead of one space; plain spaces are dropped if the
    target script uses none, and tabs and line ends around an empty translation are kept.
    """
    joined = JoinedParts(keep_space)
    for source, target in zip(sources, targets, strict=True):
        joined.append(source, target)
    return joined.complete


class JoinedParts:
    """`join_parts` for parts that arrive one after the other: `text` only grows.

    text: the translations so far.
    """

    def __init__(self, keep_space: bool = False) -> None:
        self.text = ""
        self._keep_space, self._gap = keep_space, ""
        self._before: str | None = None

    def append(self, source: str, target: str) -> None:
        """Add the translation of the next part."""
        before, self._before = self._before, source
        space = "" if before is None else _space_between(before, source)
        if before is not None and self.text and target and not self._gap:
            self.text += _joint(before, source, space, self.text, target, self._keep_space)
        elif self._keep_space and space.strip(" "):
            self._gap += space
        if target:
            self.text, self._gap = self.text + self._gap + target, ""

    @property
    def complete(self) -> str:
        """The joined text if no part follows."""
        return self.text + self._gap if self.text else ""


def _space_between(before: str, after: str) -> str:
    return before[len(before.rstrip()) :] + after[: len(after) - len(after.lstrip())]


def _joint(before: str, after: str, space: str, left: str, right: str, keep_space: bool) -> str:
    """Return the separator of the translations `left` and `right`; before, after: their sources."""
    if _spaceless(left, right):
        return space if keep_space and space.strip(" ") else ""
    if keep_space and space:
        return space
    return " " if space or _spaceless(before, after) else ""


def _spaceless(left: str, right: str) -> bool:
    """Return whether `left` ends or `right` begins in a script without spaces: Han, kana, full-width forms."""
    # Quotation marks are the same characters in English and Chinese text.
    ends = left.rstrip(_QUOTES)[-1:], right.lstrip(_QUOTES)[:1]
    return any(low <= end <= high for low, high in _SPACELESS for end in ends)
