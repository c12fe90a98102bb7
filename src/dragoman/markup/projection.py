"""The positions of tags in a translation, from the alignment of its units (see `word_alignment.py`)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dragoman.markup.word_alignment import Block, Floats, Span

_HARD, _COST = 0.5, 0.6
"""A target unit in the range of a pair of tags gains its share of the source units of the pair, and `_HARD` if the
largest share is among them, and costs `_COST`; so a range contains single units that are aligned elsewhere."""
_ATTACHED = 1.5
"""Preference for the neighbour of an empty tag from which no whitespace separates it."""
_TAKEN = -1e6


@dataclass
class Node:
    """A pair of tags or an empty tag, with the tags between them; the root stands for the whole text.

    opened, closed: indices of the tags in the segment, equal for an empty tag.  start, end: position in the text.
    first, last: position in the translation.
    """

    opened: int
    closed: int
    start: int
    end: int = 0
    children: list[Node] = field(default_factory=list)
    first: int = 0
    last: int = 0

    def walk(self) -> Iterator[Node]:
        """Yield all nodes below this one."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield from node.children
            stack += node.children

    def in_order(self) -> list[Node]:
        """Return the children in the order of the translation."""
        return sorted(self.children, key=lambda node: (node.first, node.last))


def project_nodes(root: Node, source: str, target: str, blocks: Sequence[Block]) -> None:
    """Set `first` and `last` of all nodes.  source, target: the text and its translation."""
    projection = _Projection(source, target, blocks)
    root.first, root.last = 0, len(target)
    stack = [(root, (0, len(projection.source)), (0, len(projection.target)))]
    while stack:
        node, inside, span = stack.pop()
        placed = projection.place_pairs(node, span)
        stack += [(child, *ranges) for child, ranges in placed]
        pairs = {id(child) for child, _ in placed}
        points = [child for child in node.children if id(child) not in pairs]
        if points:
            projection.place_points(node, points, inside, span, [taken for _, (_, taken) in placed])


class _Projection:
    """The units of a text and of its translation (N); ranges of units are (first, end)."""

    def __init__(self, source: str, target: str, blocks: Sequence[Block]) -> None:
        self.text, self.length = source, len(target)
        self.source = [unit for block in blocks for unit in block.source]
        self.target = [unit for block in blocks for unit in block.target]
        self.starts, self.ends = [a for a, _ in self.source], [b for _, b in self.source]
        self.sums: list[Floats] = []  # (n, m + 1) of each block: sums of weights over its first source units
        self.rows, self.columns = [0], [0]  # first unit of each block
        self.nearest = np.full(len(self.target), -1)
        for block in blocks:
            n, m = len(block.target), len(block.source)
            weights = block.weights.reshape(n, m)
            self.sums.append(np.concatenate([np.zeros((n, 1)), np.cumsum(weights, 1)], 1))
            if n and m:
                self.nearest[self.rows[-1] : self.rows[-1] + n] = weights.argmax(1) + self.columns[-1]
            self.rows.append(self.rows[-1] + n)
            self.columns.append(self.columns[-1] + m)

    def window(self, inside: Span, span: Span) -> Span:
        """Return the part of `span` that translates the blocks of a range of source units."""
        low, high = bisect_right(self.columns, inside[0]) - 1, bisect_left(self.columns, inside[1])
        first = min(max(self.rows[low], span[0]), span[1])
        return first, max(first, min(self.rows[high], span[1]))

    def shares(self, inside: Span, window: Span) -> Floats:
        """Return the share of a range of source units in each unit of `window`, plus `_HARD` if it is nearest."""
        found = np.zeros(window[1] - window[0])
        for index in range(bisect_right(self.rows, window[0]) - 1, bisect_left(self.rows, window[1])):
            row, column, sums = self.rows[index], self.columns[index], self.sums[index]
            low, high = (min(max(unit - column, 0), sums.shape[1] - 1) for unit in inside)
            first, end = max(row, window[0]), min(row + len(sums), window[1])
            if low < high and first < end:
                part = sums[first - row : end - row]
                found[first - window[0] : end - window[0]] = part[:, high] - part[:, low]
        nearest = self.nearest[slice(*window)]
        found += _HARD * ((nearest >= inside[0]) & (nearest < inside[1]))
        return found

    def place_pairs(self, node: Node, span: Span) -> list[tuple[Node, tuple[Span, Span]]]:
        """Place the pairs of tags that surround text; return their source units and disjoint target units.

        span: target units of the node.  Pairs are missing if there are not enough target units.
        """
        pairs = [(child, self._units_in(child)) for child in node.children]
        pairs = [(child, units) for child, units in pairs if units[0] < units[1]]
        chosen = self._choose(pairs, span)
        for child, (_, (first, end)) in chosen:
            child.first, child.last = self.target[first][0], self.target[end - 1][1]
        return chosen

    def _choose(self, pairs: Sequence[tuple[Node, Span]], span: Span) -> list[tuple[Node, tuple[Span, Span]]]:
        windows = [self.window(units, span) for _, units in pairs]
        shares = [self.shares(units, window) for (_, units), window in zip(pairs, windows, strict=True)]
        order = sorted(range(len(pairs)), key=lambda i: -_best_range(shares[i] - _COST)[0])
        taken = np.zeros(span[1] - span[0], bool)
        chosen = []
        for i in order:
            start = windows[i][0]
            inside = taken[start - span[0] : windows[i][1] - span[0]]
            if inside.all():
                continue
            _, first, end = _best_range(np.where(inside, _TAKEN, shares[i] - _COST))
            inside[first:end] = True
            chosen.append((pairs[i][0], (pairs[i][1], (start + first, start + end))))
        return chosen

    def place_points(self, node: Node, points: Sequence[Node], inside: Span, span: Span, taken: Sequence[Span]) -> None:
        """Place empty tags, and pairs without text, between target units of the span, but not within `taken` ranges."""
        first, end = span
        allowed = np.ones(end - first + 1, bool)
        for low, high in taken:
            allowed[low - first + 1 : high - first] = False
        for point in points:
            index = bisect_right(self.ends, point.start)  # the source unit after the tag
            boundary = first
            if index >= inside[1]:
                boundary = end
            elif index > inside[0]:
                boundary = self._boundary(point, index, span, allowed)
            position = self._between(node, point.start, boundary, span)
            for inner in (point, *point.walk()):
                inner.first = inner.last = position

    def _boundary(self, point: Node, index: int, span: Span, allowed: NDArray[np.bool_]) -> int:
        """Return the target unit before which a tag stands best.  index: the source unit before which it stands."""
        follows, precedes = self._neighbours(point.start)
        low, high = self.window((index - 1, index + 1), span)
        score = np.zeros(high - low + 1)
        score[1:] += self.shares((index - 1, index), (low, high)) * (_ATTACHED if follows > precedes else 1)
        score[:-1] += self.shares((index, index + 1), (low, high)) * (_ATTACHED if precedes > follows else 1)
        return low + int(np.where(allowed[low - span[0] : high - span[0] + 1], score, _TAKEN).argmax())

    def _between(self, node: Node, start: int, boundary: int, span: Span) -> int:
        """Return a position between target units: after the first one if the tag follows text without whitespace.

        start: position of the tag in the source.
        """
        before = self.target[boundary - 1][1] if boundary > span[0] else node.first
        after = self.target[boundary][0] if boundary < span[1] else node.last
        follows, precedes = self._neighbours(start)
        return before if follows or (boundary == span[0] and not precedes) else after

    def _neighbours(self, start: int) -> tuple[bool, bool]:
        """Return whether text stands before and after a position, without whitespace."""
        follows = start > 0 and not self.text[start - 1].isspace()
        return follows, start < len(self.text) and not self.text[start].isspace()

    def _units_in(self, node: Node) -> Span:
        return bisect_left(self.starts, node.start), bisect_right(self.ends, node.end)


def _best_range(gains: Floats) -> tuple[float, int, int]:
    """Return the largest sum of consecutive gains and its range, the shortest one if several are equal."""
    if not len(gains):
        return 0.0, 0, 0
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    total = sums[1:] - np.minimum.accumulate(sums[:-1])
    end = int(total.argmax()) + 1
    first = end - 1 - int(sums[:end][::-1].argmin())
    return float(total[end - 1]), first, end
