"""Fields of a protobuf message, such as a sentencepiece model, without a schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field: an integer, or bytes for texts, messages and numbers of fixed size.

    Raises IndexError or KeyError for a damaged message.
    """
    start = 0
    while start < len(message):
        key, start = varint(message, start)
        if key & 7 == 0:
            number, start = varint(message, start)
            yield key >> 3, number
        else:
            size, start = varint(message, start) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], start)
            yield key >> 3, message[start : start + size]
            start += size


def varint(message: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position behind it."""
    number = shift = 0
    while message[position] & 128:
        number |= (message[position] & 127) << shift
        position, shift = position + 1, shift + 7
    return number | message[position] << shift, position + 1
