"""A scatter plot of words on their first two principal components, with labels that do not overlap."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import UsageError
from dragoman.io.lines import clip
from dragoman.pages.charts import GRID, INK, SOFT, Drawing, drawing, series_color, standalone
from dragoman.pages.page import write_page

__all__ = ["principal_components", "write_picture"]

WIDTH, HEIGHT, MARGIN, FOOT = 960, 640, 64, 44
FONT, DOT = 15, 4.5
_STYLE = ".word { font-size: 15px; paint-order: stroke; stroke: var(--surface); stroke-width: 3.5px; }"

Points = dict[str, tuple[float, float]]


def principal_components(matrix: NDArray[np.float32]) -> tuple[NDArray[np.float64], float]:
    """Return coordinates (n, 2) of vectors (n, D) on their first two principal components, and their share of variance.

    The sign of a component is such that the coordinate of largest magnitude is positive.
    """
    centred = matrix.astype(np.float64) - matrix.mean(axis=0, dtype=np.float64)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(matrix), 2))
    points[:, : min(2, len(sizes))] = (left * sizes)[:, :2]
    farthest = points[np.abs(points).argmax(axis=0), [0, 1]]
    total = float((sizes**2).sum())
    return points * np.where(farthest < 0, -1.0, 1.0), float((sizes[:2] ** 2).sum()) / total if total else 0.0


def write_picture(
    path: Path, words: Sequence[str], vectors: NDArray[np.float32], arrows: Sequence[tuple[str, str]] = ()
) -> Path:
    """Draw at least two words (n) with vectors (n, D) as an SVG file and return `path`.

    arrows: pairs of the words.
    """
    if len(words) < 2:
        raise UsageError(f"a picture of {len(words)} words; accepted: at least 2 different words")
    unknown = sorted({word for pair in arrows for word in pair} - set(words))
    if unknown:
        raise UsageError(f"arrows from or to {', '.join(map(repr, unknown))}; accepted: words of the picture")
    components, share = principal_components(vectors)
    points = dict(zip(words, _pixels(components), strict=True))
    note = f"{len(words)} words along their two principal components, {100 * share:.0f} % of the variance"
    with drawing("words", WIDTH, HEIGHT) as chart:
        axes = chart.axes
        axes.set_position((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))  # data coordinates are pixels
        middle = (HEIGHT - FOOT / 2) / 2
        axes.plot([MARGIN / 2, WIDTH - MARGIN / 2], [middle, middle], color=GRID, linewidth=1)
        axes.plot([WIDTH / 2, WIDTH / 2], [MARGIN / 2, HEIGHT - FOOT - 8], color=GRID, linewidth=1)
        for start, end in arrows:
            if np.hypot(*np.subtract(points[start], points[end])) > 4 * DOT:  # room for an arrow between the points
                gap = {"shrinkA": DOT + 2, "shrinkB": DOT + 2, "mutation_scale": 14}
                style = {"arrowstyle": "-|>", "color": series_color(1), "linewidth": 1.6, **gap}
                arrow = axes.annotate("", points[end], points[start], arrowprops=style)
                chart.tag(arrow.arrow_patch, class_="arrow")
        for word, point in points.items():
            dot = axes.plot(*point, "o", color=series_color(0), markersize=2 * DOT, markeredgewidth=0)
            chart.tag(*dot, title=clip(word, 24), class_="dot")
        _draw_labels(chart, points, arrows)
        axes.text(MARGIN / 2, HEIGHT - 16, note, color=SOFT)
        svg = chart.svg(f"{note}: {', '.join(clip(word, 24) for word in words)}")
    return write_page(path, standalone(svg, _STYLE))


def _pixels(components: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return pixel coordinates with the same scale on both axes."""
    low, high = components.min(axis=0), components.max(axis=0)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN - FOOT / 2])
    scale = float((room / np.maximum(high - low, 1e-9)).min()) if (high > low).any() else 1.0
    middle = np.array([WIDTH / 2, (HEIGHT - FOOT / 2) / 2])
    pixels = middle + (components - (low + high) / 2) * scale * np.array([1, -1])
    return [(float(x), float(y)) for x, y in pixels]


# -------------------------------------------------------------------------------------------------------------- labels


class _Box(NamedTuple):
    """A rectangle by its centre and half of its sides."""

    x: float
    y: float
    w: float
    h: float

    def overlap(self, other: _Box) -> float:
        """Return the area of the intersection."""
        wide = self.w + other.w - abs(self.x - other.x)
        high = self.h + other.h - abs(self.y - other.y)
        return max(0.0, min(wide, 2 * min(self.w, other.w))) * max(0.0, min(high, 2 * min(self.h, other.h)))

    def outside(self) -> float:
        """Return by how many pixels it exceeds the picture."""
        right, bottom = self.x + self.w - (WIDTH - 4), self.y + self.h - (HEIGHT - FOOT)
        over = (4 - (self.x - self.w), right, 4 - (self.y - self.h), bottom)
        return sum(max(0.0, part) for part in over)


def _draw_labels(chart: Drawing, points: Points, arrows: Sequence[tuple[str, str]]) -> None:
    """Draw each label where it overlaps least, as near to its point as possible, with a line if it is far away."""
    taken = [_Box(x, y, DOT, DOT) for x, y in points.values()]
    for start, end in arrows:
        taken += [_Box(float(x), float(y), 2, 2) for x, y in np.linspace(points[start], points[end], 40)]
    for word, (x, y) in points.items():
        box = min(_candidates(word, x, y), key=lambda b: sum(map(b.overlap, taken)) + 1e3 * b.outside())
        taken.append(box)
        if max(abs(box.x - x) - box.w, abs(box.y - y) - box.h) > 3 * DOT:
            ends = np.clip((x, y), (box.x - box.w, box.y - box.h), (box.x + box.w, box.y + box.h))
            chart.axes.plot([x, ends[0]], [y, ends[1]], color=SOFT, linewidth=0.8, alpha=0.6)
        text = chart.axes.text(box.x, box.y + 0.34 * FONT, clip(word, 24), ha="center", fontsize=FONT, color=INK)
        chart.tag(text, class_="word")


def _candidates(word: str, x: float, y: float) -> Iterator[_Box]:
    """Yield possible boxes of the label of a point, the preferred ones first."""
    wide, high = sum(map(_width, clip(word, 24))) * FONT / 2 + 1, 0.6 * FONT
    for gap in (8, 20, 36, 56, 80):
        for dx, dy in ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)):
            yield _Box(x + dx * (gap + wide), y + dy * (gap + high), wide, high)


def _width(character: str) -> float:
    """Return the approximate width of a character in units of the font size; the reader's font is unknown."""
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in "mwMW@":
        return 0.92
    return 0.38 if character in "fijlrtI.,:;'!|-" else 0.72 if character.isupper() else 0.61
