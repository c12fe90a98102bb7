"""Sentinel tokens of T5 (Raffel et al. 2020): `<extra_id_0>` in a text stands for a span that was removed."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

__all__ = ["sentinel_parts"]

_SENTINEL = re.compile(r"<extra_id_\d+>")


def sentinel_parts(text: str, known: Container[str]) -> Iterator[tuple[int, str, bool]]:
    """Yield the known sentinels of a text and what is between them: start, part, whether it is a sentinel."""
    start = 0
    for match in _SENTINEL.finditer(text):
        if match[0] in known:
            yield start, text[start : match.start()], False
            yield match.start(), match[0], True
            start = match.end()
    yield start, text[start:], False
