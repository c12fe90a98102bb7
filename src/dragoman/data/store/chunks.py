"""The format of prepared text: chunks of at most 1,024 pairs, each verified by its hash whenever it is read.

A segment is what one task of preparation writes: `00000.ids` and `00000.text`, one record per chunk.  A record holds
the lengths of all sources, those of all targets (uint32), then the values of the sources and of the targets without
gaps.  The table of chunks (TABLE) says where each record begins, and what its hash is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

PAIRS = 1024
"""Largest number of pairs in a chunk."""
TABLE = np.dtype(
    [
        ("segment", "<u4"),
        ("pairs", "<u4"),
        ("source_tokens", "<u8"),
        ("target_tokens", "<u8"),
        ("ids_at", "<u8"),
        ("ids_bytes", "<u8"),
        ("ids_hash", "<u8"),
        ("text_at", "<u8"),
        ("text_bytes", "<u8"),
        ("text_hash", "<u8"),
    ]
)
"""A row per chunk.  Tokens are counted without the end of sentence; offsets are bytes in the files of the segment."""
_LENGTH = np.dtype("<u4")


def id_type(vocabulary: int) -> np.dtype[np.generic]:
    """Return the smallest type that holds all ids of a vocabulary."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def record_hash(content: bytes) -> int:
    """Return the 64-bit BLAKE2b hash of a record."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Record:
    """Values of pairs.  lengths: of the sources and of the targets; values: of all sources and all targets."""

    lengths: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    values: tuple[NDArray[np.generic], NDArray[np.generic]]

    @classmethod
    def parse(cls, content: bytes, pairs: int, item: np.dtype[np.generic]) -> Record:
        """Return the record in these bytes.  Raises ValueError if lengths and values do not fit each other."""
        lengths = np.frombuffer(content, _LENGTH, 2 * pairs).reshape(2, pairs)
        values = np.frombuffer(content, item, offset=lengths.nbytes)
        split = int(lengths[0].sum(dtype=np.int64))
        if split + int(lengths[1].sum(dtype=np.int64)) != len(values):
            raise ValueError("lengths and values disagree")
        return cls((lengths[0], lengths[1]), (values[:split], values[split:]))

    def __bytes__(self) -> bytes:
        return b"".join(part.tobytes() for part in (*self.lengths, *self.values))

    def __len__(self) -> int:
        return len(self.lengths[0])

    @cached_property
    def ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the values of each source and of each target end."""
        src, tgt = (np.cumsum(lengths, dtype=np.int64) for lengths in self.lengths)
        return src, tgt

    def row(self, number: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return the values of the source and of the target of a pair."""
        src, tgt = (
            values[ends.item(number) - lengths.item(number) : ends.item(number)]
            for lengths, values, ends in zip(self.lengths, self.values, self.ends, strict=True)
        )
        return src, tgt

    def texts(self) -> list[tuple[str, str]]:
        """Return all pairs of a record of UTF-8.  Raises UnicodeDecodeError."""
        sides = []
        for side in (0, 1):
            data, ends = self.values[side].tobytes(), [0, *self.ends[side].tolist()]
            sides.append([data[a:b].decode() for a, b in pairwise(ends)])
        return list(zip(*sides, strict=True))


def text_record(pairs: Sequence[tuple[str, str]]) -> Record:
    """Return the record of at least one pair of texts, as UTF-8."""
    sides = [[text.encode() for text in texts] for texts in zip(*pairs, strict=True)]
    return _record(sides, [np.frombuffer(b"".join(rows), np.uint8) for rows in sides])


def ids_record(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], item: np.dtype[np.generic]) -> Record:
    """Return the record of at least one pair of token ids.  item: see `id_type`."""
    sides = list(zip(*pairs, strict=True))
    return _record(sides, [np.fromiter(chain.from_iterable(rows), item) for rows in sides])


def _record(sides: Sequence[Sequence[Sized]], values: Sequence[NDArray[np.generic]]) -> Record:
    src, tgt = (np.fromiter(map(len, rows), _LENGTH, len(rows)) for rows in sides)
    return Record((src, tgt), (values[0], values[1]))
