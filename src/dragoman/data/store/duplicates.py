"""Duplicate pairs, found by sorting their 64-bit hashes, a range of values at a time.

Two different pairs have the same hash with probability 2**-64: of n different pairs, n**2 / 2**65 are dropped by
mistake on average (0.03 of a billion).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.data.store.segments import sorted_hashes

_AT_ONCE = 1 << 24
"""Hashes that are sorted at once, which takes about 500 MB."""
_RANGES = 256
_EDGES = np.arange(1, _RANGES, dtype=np.uint64) << np.uint64(56)


def find_duplicates(earlier: Sequence[Path], segments: Sequence[tuple[str, int]]) -> list[NDArray[np.uint32]]:
    """Return the positions of duplicates in each segment, in ascending order: all but the first of equal pairs.

    earlier: files of the hashes of corpora that come before, in ascending order.  segments: stem and number of pairs
    (see `sorted_hashes`).
    """
    bounds = [_bounds(np.fromfile(path, np.uint64)) for path in earlier]
    bounds += [_bounds(sorted_hashes(*segment)[0]) for segment in segments]
    duplicates: list[list[NDArray[np.uint32]]] = [[] for _ in segments]
    for first, last in _groups(np.diff(np.sum(bounds, axis=0)) if bounds else np.zeros(_RANGES, np.int64)):
        spans = [(int(ends[first]), int(ends[last])) for ends in bounds]
        _search(earlier, segments, spans, duplicates)
    empty = np.zeros(0, np.uint32)
    return [np.sort(np.concatenate(positions or [empty])) for positions in duplicates]


def _bounds(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return where each range of values begins in sorted hashes, and their number."""
    return np.concatenate([[0], np.searchsorted(hashes, _EDGES), [len(hashes)]])


def _groups(counts: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return spans of ranges that contain at most _AT_ONCE hashes, or are a single range."""
    groups, first, total = [], 0, 0
    for i, count in enumerate(counts.tolist()):
        if total and total + count > _AT_ONCE:
            groups.append((first, i))
            first, total = i, 0
        total += count
    return [*groups, (first, len(counts))]


def _search(
    earlier: Sequence[Path],
    segments: Sequence[tuple[str, int]],
    spans: Sequence[tuple[int, int]],
    found: list[list[NDArray[np.uint32]]],
) -> None:
    """Add the positions of the duplicates among the hashes in these spans of the files."""
    count = len(earlier)
    parts = [
        np.fromfile(path, np.uint64, b - a, offset=8 * a) for path, (a, b) in zip(earlier, spans[:count], strict=True)
    ]
    owners, positions = [], []
    for number, ((stem, pairs), (a, b)) in enumerate(zip(segments, spans[count:], strict=True)):
        hashes, order = sorted_hashes(stem, pairs)
        parts.append(hashes[a:b].copy())
        positions.append(order[a:b].copy())
        owners.append(np.full(b - a, number, np.uint32))
    if not owners:
        return
    hashes = np.concatenate(parts)
    sorting = np.argsort(hashes, kind="stable")  # equal hashes stay in the order of the text
    hashes = hashes[sorting]
    old = len(hashes) - sum(map(len, owners))
    repeated = sorting[1:][hashes[1:] == hashes[:-1]]
    repeated = repeated[repeated >= old] - old  # earlier corpora have no duplicates among themselves
    owner, position = np.concatenate(owners)[repeated], np.concatenate(positions)[repeated]
    for number in np.unique(owner).tolist():
        found[number].append(position[owner == number])
