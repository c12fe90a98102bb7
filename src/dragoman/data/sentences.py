"""Splitting of a text into sentences by rules."""

from __future__ import annotations

import re
from itertools import pairwise

__all__ = ["split_sentences"]

_CLOSING = "\"'”’»)]}」』）》"
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[A-Z\d]|Mr|Mrs|Ms|Dr|Prof|St|Nr|No|Jr|Sr|vs|etc|bzw|ca|usw|M|Mme)\.$")
_BREAK = re.compile(r"\s+|[。！？][。！？…」』）》”’]{0,4}\s*")


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """Split a text into sentences, such that `"".join(parts) == text`; each part keeps the whitespace that follows it.

    language: code such as `de` or `zh`; None: rules that fit most languages.  A text without letters is one part.
    """
    spans = (match.span() for match in _BREAK.finditer(text))
    ends = [end for start, end in spans if 0 < end < len(text) and _ends_sentence(text, start, end)]
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]


def _ends_sentence(text: str, start: int, end: int) -> bool:
    if not text[start].isspace():
        return True  # Chinese and Japanese punctuation is not followed by a space
    words = text[max(0, start - 12) : start].rstrip(_CLOSING)
    if not words.endswith((".", "!", "?", "…", "。", "！", "？")):
        return False
    return not text[end].islower() and not _ABBREVIATION.search(words)
