"""Selection of validation and test pairs without near-duplicates among the training pairs.

Two sentences are near-duplicates if their letters are equal; case, spaces, punctuation and digits are ignored.  Pairs
that are linked by near-duplicates on either side, directly or through other pairs, form a group, and a group is never
split.  In a text whose sentences mostly differ only in digits, digits are compared, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

TRAIN, VALID, TEST = 0, 1, 2

_MAX_GROUP = 12
_MOST, _SHARE = 2000, 0.05

Ints = NDArray[np.int64]


def letters_hash(text: str, digits: bool = False) -> int:
    """Return a 64-bit hash of the case-folded letters of a text; of the whole text if it has no letters.

    digits: whether to hash digits, too.
    """
    letters = "".join(filter(str.isalnum if digits else str.isalpha, text.casefold())) or text
    digest = hashlib.blake2b(letters.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def linked_groups(sources: NDArray[np.uint64], targets: NDArray[np.uint64]) -> Ints:
    """Return for each pair the smallest index of a pair in its group; sources, targets: hashes of the two sides."""
    sides = []
    for hashes in (sources, targets):
        _, numbers = np.unique(hashes, return_inverse=True)
        sides.append((numbers, int(numbers.max(initial=-1)) + 1))
    groups = np.arange(len(sources), dtype=np.int64)
    while True:
        before = groups
        for numbers, count in sides:
            smallest = np.full(count, len(groups), dtype=np.int64)
            np.minimum.at(smallest, numbers, groups)
            groups = smallest[numbers]
        groups = groups[groups]  # pointer jumping: fewer rounds
        if np.array_equal(groups, before):
            return groups


def mostly_large(groups: Ints) -> bool:
    """Return whether most pairs are in groups that are too large for a held-out part."""
    _, sizes = np.unique(groups, return_counts=True)
    return 2 * int(sizes[sizes > _MAX_GROUP].sum()) > len(groups)


def held_out_size(pairs: int) -> int:
    """Return the number of validation pairs, and of test pairs: 2,000, but at most 5 % of all pairs."""
    return min(_MOST, int(_SHARE * pairs))


def choose_held_out(groups: Ints, wanted: Iterable[tuple[int, int]], seed: int = 1) -> NDArray[np.uint8]:
    """Return the part of each pair: TRAIN, or a part of `wanted`, which contains (part, number of pairs).

    Whole groups of at most 12 pairs are drawn, in an order that depends only on the seed and the number of groups.  A
    part gets fewer pairs than wanted only if there are not enough such groups.
    """
    parts = np.full(len(groups), TRAIN, dtype=np.uint8)
    names, numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    small = order[sizes[order] <= _MAX_GROUP]
    part_of_group = np.full(len(names), TRAIN, dtype=np.uint8)
    start = 0
    for part, count in wanted:
        totals = np.cumsum(sizes[small[start:]])
        taken = int(np.searchsorted(totals, count, side="right"))
        part_of_group[small[start : start + taken]] = part
        start += taken
    parts[:] = part_of_group[numbers]
    return parts
