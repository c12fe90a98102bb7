"""Where two files that should be parallel stop being so, told from their lines without a dictionary.

A line and its translation have lengths in proportion, end alike, and share numbers and names.  Each pair of lines
gets a cost from the three; the alignment is the cheapest way through both files whose shift goes from zero at the front
to the difference of the counts at the back.  Letters: n lines of the shorter file, d lines more in the longer.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.io.lines import open_lines

__all__ = ["LineFeatures", "Shift", "drift_of", "first_drift", "line_features", "shifted_stretch"]

Floats = NDArray[np.float32]
Ints = NDArray[np.intp]

_ANCHOR = re.compile(r"\d+|[^\W\d_]\w+")
_ENDINGS = {".": 1, "。": 1, "।": 1, "?": 2, "？": 2, "؟": 2, "!": 3, "！": 3, ":": 4, "：": 4}
_MAX_LENGTH_COST = 1.0
_ENDING_COST = 0.3
_ANCHOR_GAIN = 0.3
_MAX_STEPS = 32
_MARGIN = 0.08
_CERTAIN_Z = 8.0


@dataclass(frozen=True)
class LineFeatures:
    """What is kept of each line of a file: 13 bytes, whatever its length."""

    log_length: Floats
    ending: NDArray[np.uint8]
    anchors: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.log_length)

    def part(self, start: int, stop: int) -> LineFeatures:
        """The features of lines `start` to `stop`, as a view."""
        return LineFeatures(self.log_length[start:stop], self.ending[start:stop], self.anchors[start:stop])


@dataclass(frozen=True)
class Shift:
    """A stretch of lines (counted from 1) whose target fits better `offset` lines further on.

    z: the mean gain per line of the stretch in standard errors.
    """

    first: int
    last: int
    offset: int
    z: float

    @property
    def certain(self) -> bool:
        """Whether the shift is beyond chance: unrelated files reach a z of about 5."""
        return self.z >= _CERTAIN_Z


def _anchors(text: str) -> int:
    """A 64-bit set of the numbers and capitalised words of a line, by the first four letters."""
    found = 0
    for word in _ANCHOR.findall(text):
        if word[0].isupper() or word[0].isdigit():
            found |= 1 << (zlib.crc32(word[:4].casefold().encode("utf-8", "replace")) & 63)
    return found


def line_features(path: Path, blocks: Sequence[range] | None = None) -> LineFeatures:
    """Read the features of every line, or of the `blocks` of lines (from 0, in order); undecodable bytes are tolerated.

    Raises DataError as `open_lines` does.
    """
    lengths, endings, anchors = array("I"), array("B"), array("Q")
    for raw in open_lines(path) if blocks is None else _selected(open_lines(path), blocks):
        text = raw.decode("utf-8", "replace").strip()
        lengths.append(len(text))
        endings.append(_ENDINGS.get(text[-1:], 0))
        anchors.append(_anchors(text))
    log_length = np.log1p(np.array(lengths, dtype=np.float32))
    return LineFeatures(log_length, np.array(endings, dtype=np.uint8), np.array(anchors, dtype=np.uint64))


def _selected(lines: Iterator[bytes], blocks: Sequence[range]) -> Iterator[bytes]:
    """The lines of the blocks; what comes after the last block is not read."""
    position = 0
    for block in blocks:
        yield from islice(lines, block.start - position, block.stop - position)
        position = block.stop


def _usual_log_ratio(source: LineFeatures, target: LineFeatures) -> float:
    return float(np.median(target.log_length) - np.median(source.log_length))


def _costs(source: LineFeatures, target: LineFeatures, usual_log_ratio: float) -> Floats:
    """The cost of each pair of lines at the same place of two equally long stretches."""
    length = np.abs(target.log_length - source.log_length - np.float32(usual_log_ratio))
    ending = (source.ending != target.ending).astype(np.float32)
    anchor = ((source.anchors & target.anchors) != 0).astype(np.float32)
    cost: Floats = np.minimum(length, _MAX_LENGTH_COST) + _ENDING_COST * ending - _ANCHOR_GAIN * anchor
    return cost


def drift_of(source: LineFeatures, target: LineFeatures) -> int | None:
    """The line (from 1) where two files of different length lose each other, or None where the lengths are the same.

    For every number k of lines read, the cheapest path is kept that ends at each shift, and where it left shift zero.
    """
    if len(source) == len(target):
        return None
    shorter, longer = (source, target) if len(source) < len(target) else (target, source)
    n, d = len(shorter), len(longer) - len(shorter)
    if n == 0:
        return 1
    ratio = _usual_log_ratio(shorter, longer)
    cheapest = np.zeros(0)
    left_zero: Ints = np.zeros(0, dtype=np.intp)
    places = np.arange(n + 1)
    for shift in range(d + 1) if d <= _MAX_STEPS else (0, d):
        path = np.zeros(n + 1)
        np.cumsum(_costs(shorter, longer.part(shift, shift + n), ratio), out=path[1:])
        if shift == 0:
            cheapest, left_zero = path, places
            continue
        entered = cheapest - path
        lowest = np.minimum.accumulate(entered)
        at = np.maximum.accumulate(np.where(entered <= lowest, places, 0))
        cheapest, left_zero = lowest + path, left_zero[at]
    return int(left_zero[n]) + 1


def first_drift(source_path: Path, target_path: Path) -> int | None:
    """The estimated line (from 1) where two files stop matching, or None where they have equally many lines.

    Raises DataError where a file cannot be read.
    """
    return drift_of(line_features(source_path), line_features(target_path))


def _z(gains: Floats) -> float:
    return float(gains.mean() * len(gains) ** 0.5 / max(float(gains.std()), 1e-6))


def shifted_stretch(
    source: LineFeatures, target: LineFeatures, *, reach: int = 3, evidence: float = 8.0
) -> Shift | None:
    """The stretch of two equally long files that fits much better when one side is moved by up to `reach` lines.

    `evidence` is the total cost to be gained, beyond a margin per line, before a stretch is worth a warning.
    """
    n = len(source)
    if n <= reach or n != len(target):
        return None
    ratio = _usual_log_ratio(source, target)
    straight = _costs(source, target, ratio)
    best: tuple[float, Shift] | None = None
    for offset in (o for o in range(-reach, reach + 1) if o != 0):
        low, high = max(0, -offset), min(n, n - offset)
        shifted = _costs(source.part(low, high), target.part(low + offset, high + offset), ratio)
        gains = straight[low:high] - shifted
        total = np.zeros(high - low + 1)
        np.cumsum(gains - _MARGIN, out=total[1:])
        gain = total - np.minimum.accumulate(total)
        end = int(np.argmax(gain))
        start = int(np.argmin(total[: end + 1]))
        if gain[end] > evidence and (best is None or gain[end] > best[0]):
            best = float(gain[end]), Shift(low + start + 1, low + end, offset, _z(gains[start:end]))
    return best[1] if best else None
