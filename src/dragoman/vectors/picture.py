"""Words drawn as points in the plane: principal components, and labels that keep out of each other's way.

One SVG with everything in it; it follows the reader's choice of light or dark.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import UsageError
from dragoman.io.lines import clip
from dragoman.io.writing import write_file

__all__ = ["principal_components", "write_picture"]

WIDTH, HEIGHT, MARGIN, FOOT = 960, 640, 64, 44
FONT, DOT = 15, 4.5

_STYLE = """
  svg { --page: #ffffff; --ink: #1c2027; --soft: #59616f; --line: #e6e8ec; --dot: #1d5dbd; --arrow: #b0500a;
    font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
  @media (prefers-color-scheme: dark) {
    svg { --page: #1a1d23; --ink: #e9ebef; --soft: #a3abb8; --line: #2c313a; --dot: #82b4ff; --arrow: #f2a65e; } }
  .page { fill: var(--page); } .axis { stroke: var(--line); } .dot { fill: var(--dot); }
  .lead { stroke: var(--soft); stroke-width: 0.8; opacity: 0.6; }
  .arrow { stroke: var(--arrow); stroke-width: 1.6; fill: none; opacity: 0.85; } .head { fill: var(--arrow); }
  .word { fill: var(--ink); font-size: 15px; text-anchor: middle;
    paint-order: stroke; stroke: var(--page); stroke-width: 3.5px; stroke-linejoin: round; }
  .note { fill: var(--soft); font-size: 13px; }
"""


@dataclass(frozen=True)
class _Box:
    """A rectangle by its centre and half its sides."""

    x: float
    y: float
    w: float
    h: float

    def overlap(self, other: _Box) -> float:
        """The area that both cover."""
        wide = self.w + other.w - abs(self.x - other.x)
        high = self.h + other.h - abs(self.y - other.y)
        return max(0.0, min(wide, 2 * min(self.w, other.w))) * max(0.0, min(high, 2 * min(self.h, other.h)))

    def outside(self) -> float:
        """How far it leaves the drawing."""
        right, bottom = WIDTH - 4, HEIGHT - FOOT
        over = (4 - (self.x - self.w), self.x + self.w - right, 4 - (self.y - self.h), self.y + self.h - bottom)
        return sum(max(0.0, part) for part in over)


def principal_components(matrix: NDArray[np.float32]) -> tuple[NDArray[np.float64], float]:
    """(n, D) -> coordinates (n, 2) along the two directions of the greatest variance, and their share of it, 0 to 1.

    Of each direction and its opposite, the one is taken along which the farthest word lies.
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
    """Draw words (n, at least two) with vectors (n, D) as an SVG file; arrows join pairs of the words."""
    if len(words) < 2:
        raise UsageError(f"a picture of {len(words)} words; accepted are two or more")
    strangers = sorted({word for pair in arrows for word in pair} - set(words))
    if strangers:
        raise UsageError(f"arrows from or to {', '.join(map(repr, strangers))}; accepted: words of the picture")
    components, share = principal_components(vectors)
    places = dict(zip(words, _onto_the_page(components), strict=True))
    body = [*_axes(), *_arrows(places, arrows), *_dots(places), *_labels(places, arrows)]
    note = f"{len(words)} words along their two principal components, {100 * share:.0f} % of the variance"
    write_file(path, _page(note, ", ".join(map(_shown, words)), body).encode())
    return path


def _onto_the_page(components: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Coordinates in pixels, the same scale for both, so that a distance is a distance."""
    low, high = components.min(axis=0), components.max(axis=0)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN - FOOT / 2])
    scale = float((room / np.maximum(high - low, 1e-9)).min()) if (high > low).any() else 1.0
    middle = np.array([WIDTH / 2, (HEIGHT - FOOT / 2) / 2])
    pixels = middle + (components - (low + high) / 2) * scale * np.array([1, -1])
    return [(float(x), float(y)) for x, y in pixels]


def _axes() -> list[str]:
    x, y = WIDTH / 2, (HEIGHT - FOOT / 2) / 2
    return [
        f'<path class="axis" d="M{MARGIN / 2:.0f} {y:.1f}H{WIDTH - MARGIN / 2:.0f}"/>',
        f'<path class="axis" d="M{x:.1f} {MARGIN / 2:.0f}V{HEIGHT - FOOT - 8}"/>',
    ]


def _arrows(places: dict[str, tuple[float, float]], arrows: Sequence[tuple[str, str]]) -> list[str]:
    lines = []
    for start, end in arrows:
        (x0, y0), (x1, y1) = places[start], places[end]
        length = math.dist((x0, y0), (x1, y1))
        if length > 4 * DOT:  # nearer points have no room for an arrow between them
            dx, dy = (x1 - x0) / length, (y1 - y0) / length
            gap, tip = DOT + 2, DOT + 8
            lines.append(
                f'<path class="arrow" marker-end="url(#head)" d="M{x0 + gap * dx:.1f} {y0 + gap * dy:.1f}'
                f'L{x1 - tip * dx:.1f} {y1 - tip * dy:.1f}"/>'
            )
    return lines


def _dots(places: dict[str, tuple[float, float]]) -> list[str]:
    return [
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{DOT}"><title>{_shown(word)}</title></circle>'
        for word, (x, y) in places.items()
    ]


def _labels(places: dict[str, tuple[float, float]], arrows: Sequence[tuple[str, str]]) -> list[str]:
    """A label a word, where it covers least: near its point if it can, else farther away with a line to it."""
    taken = [_Box(x, y, DOT, DOT) for x, y in places.values()]
    for start, end in arrows:
        taken += [_Box(float(x), float(y), 2, 2) for x, y in np.linspace(places[start], places[end], 40)]
    lines = []
    for word, (x, y) in places.items():
        box = min(_candidates(word, x, y), key=lambda b: sum(map(b.overlap, taken)) + 1e3 * b.outside())
        taken.append(box)
        away = max(abs(box.x - x) - box.w, abs(box.y - y) - box.h)
        if away > 3 * DOT:
            end_x, end_y = min(max(x, box.x - box.w), box.x + box.w), min(max(y, box.y - box.h), box.y + box.h)
            lines.append(f'<path class="lead" d="M{x:.1f} {y:.1f}L{end_x:.1f} {end_y:.1f}"/>')
        lines.append(f'<text class="word" x="{box.x:.1f}" y="{box.y + 0.34 * FONT:.1f}">{_shown(word)}</text>')
    return lines


def _candidates(word: str, x: float, y: float) -> list[_Box]:
    """Where the label of a point may stand, the best first (`min` takes the first of equals)."""
    text = clip(word, 24)
    wide = sum(map(_width, text)) * FONT / 2 + 1
    high = 0.6 * FONT
    sides = [(1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)]
    gaps = (8, 20, 36, 56, 80)
    return [_Box(x + dx * (gap + wide), y + dy * (gap + high), wide, high) for gap in gaps for dx, dy in sides]


def _width(character: str) -> float:
    """About how wide a character is, in sizes of the font: what the reader's font does, nobody here knows."""
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in "mwMW@":
        return 0.92
    return 0.38 if character in "fijlrtI.,:;'!|-" else 0.72 if character.isupper() else 0.61


def _shown(word: str) -> str:
    return html.escape(clip(word, 24))


def _page(note: str, words: str, body: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-labelledby="title words">\n<title id="title">{html.escape(note)}</title>\n'
        f'<desc id="words">{words}</desc>\n<style>{_STYLE}</style>\n'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>\n'
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>\n'
    )
    foot = f'\n<text class="note" x="{MARGIN / 2:.0f}" y="{HEIGHT - 16}">{html.escape(note)}</text>\n</svg>\n'
    return head + "\n".join(body) + foot
