"""Splitting of text that is too long for a model, and joining of the translations of its parts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import pairwise

__all__ = ["join_parts", "split_text"]

_QUOTES = "\"'“”‘’"
_CLOSING = "\"'”’»)]}」』）》"
_SPACELESS = (("\u3000", "\u30ff"), ("\u3400", "\u9fff"), ("\uff00", "\uffef"), ("\U00020000", "\U0003ffff"))
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[A-Z\d]|Mr|Mrs|Ms|Dr|Prof|St|Nr|No|Jr|Sr|vs|etc|bzw|ca|usw|M|Mme)\.$")


Break = tuple[re.Pattern[str], Callable[[str, int, int], bool]]
"""Pattern of possible breaks, and a function that returns whether `text[start:end]` is one."""


def _ends_sentence(text: str, start: int, end: int) -> bool:
    if not text[start].isspace():
        return True  # Chinese and Japanese punctuation is not followed by a space
    words = text[max(0, start - 12) : start].rstrip(_CLOSING)
    if not words.endswith((".", "!", "?", "…", "。", "！", "？")):
        return False
    return not text[end].islower() and not _ABBREVIATION.search(words)


def _ends_clause(text: str, start: int, end: int) -> bool:
    return not text[start].isspace() or text[max(0, start - 1) : start] in tuple(",;:–—、，；：")


_BREAKS: tuple[Break, ...] = (
    (re.compile(r"\s+|[。！？][。！？…」』）》”’]{0,4}\s*"), _ends_sentence),
    (re.compile(r"\s+|[、，；：]\s*"), _ends_clause),
    (re.compile(r"\s+"), lambda text, start, end: True),
)


def split_text(text: str, limit: int, count: Callable[[str], int], breaks: Sequence[Break] = _BREAKS) -> list[str]:
    """Split `text` into parts of at most `limit` tokens each, such that "".join(parts) == text.

    count: returns the tokens of a part, including the end of sentence.  breaks: where to split, in order of preference.
    Whole sentences are packed together while they fit; a longer sentence is split at clause marks, then at spaces, then
    anywhere.  A single character is never split.
    """
    if len(text) <= 1 or count(text) <= limit:
        return [text]
    pieces = _cut_after(text, *breaks[0]) if breaks else _halves(text)
    return _pack([part for piece in pieces for part in split_text(piece, limit, count, breaks[1:])], limit, count)


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
        # Joined text rarely has more tokens than its parts together; if it does, the parts stay separate.
        packed += [joined] if len(group) == 1 or count(joined) <= limit else group
    return packed


def _cut_after(text: str, breaks: re.Pattern[str], is_end: Callable[[str, int, int], bool]) -> list[str]:
    spans = (match.span() for match in breaks.finditer(text))
    ends = [end for start, end in spans if 0 < end < len(text) and is_end(text, start, end)]
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]


def _halves(text: str) -> list[str]:
    middle = len(text) // 2
    last = min(middle + 8, len(text) - 1)
    while middle < last and unicodedata.combining(text[middle]):
        middle += 1  # keep combining accents with their letter
    return [text[:middle], text[middle:]]


def join_parts(sources: Sequence[str], targets: Sequence[str]) -> str:
    """Join the translations of consecutive parts.

    Two are joined with a space if their sources are, or if only the target's script uses spaces; the parts of a split
    word are joined without one.
    """
    text = ""
    for i, target in enumerate(targets):
        if text and target:
            text += _joint(sources[i - 1], sources[i], text, target)
        text += target
    return text


def _joint(before: str, after: str, left: str, right: str) -> str:
    """Return what joins two translations: `before` and `after` are their sources, `left` and `right` their texts."""
    if _spaceless(left, right):
        return ""
    spaced = before[-1:].isspace() or after[:1].isspace()
    return " " if spaced or _spaceless(before, after) else ""


def _spaceless(left: str, right: str) -> bool:
    """Return whether `left` ends or `right` begins in a script without spaces: Han, kana, full-width forms."""
    # Quotation marks are the same characters in English and Chinese text.
    ends = left.rstrip(_QUOTES)[-1:], right.lstrip(_QUOTES)[:1]
    return any(low <= end <= high for low, high in _SPACELESS for end in ends)
