"""Charts as SVG, drawn by matplotlib.

Colours are CSS variables (`colors.css`), so that a chart follows the light or dark mode of its page.  The elements of a
series carry `data-group`, by which a page hides or highlights them.  The same input gives the same bytes.
"""

from __future__ import annotations

import html
import io
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dragoman.extras import extra_package
from dragoman.pages.page import read_assets

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLORS = 8
MARKERS = "os^DvP"
"""Markers of matplotlib; group i has the colour i modulo COLORS and the marker i modulo len(MARKERS)."""
WIDTH, HEIGHT = 480, 270
INK, SOFT, GRID, SURFACE = "#fe0000", "#fe0001", "#fe0002", "#fe0003"
"""Placeholder colours, which `Drawing.svg` replaces with CSS variables."""
_VARIABLES = ("--ink", "--soft", "--line", "--surface")
_MOST_MARKERS = 40
_LARGEST = 1e30
"""Larger values, from a diverged or damaged log, are clipped to this one, because matplotlib would overflow."""

UNITS = {
    "steps": "步", "hours": "小时", "minutes": "分钟", "seconds": "秒", "words in the source": "源文词数",
    "characters in the source": "源文字符数",
}  # fmt: skip
"""Names of x axes in Chinese."""

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 12, "text.color": INK,
    "axes.edgecolor": SOFT, "axes.labelcolor": SOFT, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "axes.spines.left": False, "axes.spines.top": False, "axes.spines.right": False, "grid.color": GRID,
    "xtick.color": SOFT, "xtick.major.size": 0, "xtick.major.pad": 10, "xtick.minor.size": 0,
    "ytick.color": SOFT, "ytick.major.size": 0, "ytick.minor.size": 0,
    "axes.labelpad": 7, "lines.linewidth": 2, "lines.solid_capstyle": "round",
}  # fmt: skip


def series_color(group: int) -> str:
    """Return the placeholder colour of group number `group`."""
    return f"#fe01{group % COLORS:02}"


@dataclass(frozen=True)
class Line:
    """A series of points (x, y); `others`: thin lines of the same group; `errors`: half the heights of error bars."""

    name: str
    points: Sequence[tuple[float, float]]
    group: int = 0
    others: Sequence[Sequence[tuple[float, float]]] = ()
    errors: Sequence[float] = ()


class Drawing:
    """A matplotlib figure with its axes; one unit of the SVG is one pixel and one point."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        self.axes: Axes = self.figure.subplots()
        for patch in (self.figure.patch, self.axes.patch):
            patch.set_visible(False)
        self._tags: list[str] = []

    def tag(self, *artists: Any, title: str = "", **attributes: str | int) -> None:
        """Give artists attributes in the SVG (`data_group=1` becomes `data-group="1"`) and a tooltip."""
        listed = "".join(f' {key.strip("_").replace("_", "-")}="{value}"' for key, value in attributes.items())
        for artist in artists:
            artist.set_gid(f"tag-{len(self._tags)}")
            self._tags.append(f"<g{listed}>" + (f"<title>{html.escape(title)}</title>" if title else ""))

    def svg(self, label: str = "") -> str:
        """Return an `<svg>` element that scales with its container.

        label: description for screen readers, which skip the element without it.
        """
        file = io.StringIO()
        self.figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        text = file.getvalue()
        start = text.index("<svg")
        view = text[text.index('viewBox="', start) :].split('"')[1]
        text = text[text.index(">", start) + 1 :]
        text = _DROPPED.sub("", text)
        text = re.sub(r'<g id="tag-(\d+)">', lambda match: self._tags[int(match[1])], text)
        text = re.sub(r"<[^<>]*>", lambda match: _shortened(match[0]), text)
        text = re.sub(r"(?<!\s)\s*\n\s*", "\n", text)
        role = f'role="img" aria-label="{html.escape(label)}"' if label else 'aria-hidden="true"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view}" {role}>{text}'


_DROPPED = re.compile(
    r"<metadata>.*?(?:</metadata>|\Z)|<style.*?(?:</style>|\Z)|<!--.*?(?:-->|\Z)|<g id=[^\s<]+/>", re.DOTALL
)


def _shortened(tag: str) -> str:
    """Return an SVG tag with short numbers and CSS variables as colours, without fonts and without unused ids."""
    tag = re.sub(r'^<g id="[^"]*"', "<g", tag)
    tag = re.sub(r"font-(size|family): [^;\"]*;? ?| transform=\"rotate\(-?0 [^\"]*\"", "", tag)
    tag = re.sub(r"-?(?<!\d)\d+\.\d{2,}", lambda match: f"{float(match[0]):.1f}", tag)
    tag = re.sub(r"#fe00(\d\d)", lambda match: f"var({_VARIABLES[int(match[1])]})", tag)
    tag = re.sub(r"#fe01(\d\d)", lambda match: f"var(--s{int(match[1])})", tag)
    return tag.replace("xlink:href", "href").replace(" \n", " ")


@contextmanager
def drawing(name: str, width: float = WIDTH, height: float = HEIGHT) -> Iterator[Drawing]:
    """Yield an empty drawing in the style of the pages.

    name: makes the ids inside the SVG unique; every chart of a page needs its own.
    """
    matplotlib = extra_package("matplotlib", "train", "drawing charts")
    style: Any = {**_STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # The fonts of the reader's machine draw the text, so a glyph that matplotlib's font lacks does not matter.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield Drawing(width, height)


def draw_curves(
    name: str,
    lines: Sequence[Line],
    unit: str,
    *,
    label: str = "",
    log: bool = False,
    close: bool = False,
    top: float | None = None,
    ticks: Sequence[str] = (),
    width: float = WIDTH,
) -> str:
    """Return an SVG of lines over an x axis that begins at 0.

    unit: name of the x axis.  log: use a logarithmic y axis if all values are positive.  close: fit the y axis to the
    values after the first third of the x axis.  top: upper end of the y axis; by default the largest value.  ticks:
    labels of the x positions 0, 1, ...
    """
    with drawing(name, width) as chart:
        axes, (left, right) = chart.axes, _box(width)
        axes.set_position((left, 0.17, right - left, 0.8))
        axes.set_xlim(_x_limits(lines, ticks))
        first = 0.35 * axes.get_xlim()[1] if close else 0
        lines = [replace(x, points=_clamped(x.points), others=list(map(_clamped, x.others))) for x in lines]
        values = [y for line in lines for part in (line.points, *line.others) for x, y in part if x >= first]
        for i, line in enumerate(lines):
            # Error bars of several lines at the same x stand side by side.
            shift = (i - (len(lines) - 1) / 2) * min(0.08, 0.7 / len(lines)) if line.errors else 0
            chart.tag(*_draw_line(axes, line, shift, clip=close), data_group=line.group)
            values += [y + error for (_, y), error in zip(line.points, line.errors, strict=False)]
        if ticks:
            axes.set_xticks(range(len(ticks)), ticks)
        else:
            format_axis(axes.xaxis)
        axes.set_xlabel(unit, loc="right")
        _set_y_axis(axes, values, log, close, top)
        name = html.escape(unit)
        in_both = f'<tspan lang="en">{name}</tspan><tspan lang="zh">{UNITS.get(unit, unit)}</tspan>'
        return chart.svg(label).replace(f">{name}</text>", f">{in_both}</text>")


def readout(
    lines: Sequence[Line],
    unit: str,
    ticks: Sequence[str] = (),
    width: float = WIDTH,
    chinese: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what `charts.js` needs to show the values of `draw_curves` under the pointer.

    chinese: names of lines in Chinese; others are the same in both languages.
    """
    names = {name: {"en": name, "zh": text} for name, text in (chinese or {}).items()}
    listed = [{"name": names.get(line.name, line.name), "group": line.group, "points": line.points} for line in lines]
    units = {"en": unit, "zh": UNITS.get(unit, unit)}
    return {"box": _box(width), "x": _x_limits(lines, ticks), "unit": units, "ticks": ticks, "lines": listed}


def _box(width: float) -> tuple[float, float]:
    """Return the left and right end of the x axis as shares of the width."""
    return 55 / width, 1 - 20 / width


def _x_limits(lines: Sequence[Line], ticks: Sequence[str]) -> tuple[float, float]:
    if ticks:
        return -0.5, len(ticks) - 0.5
    return 0.0, min(_LARGEST, max((x for line in lines for x, _ in line.points), default=0.0)) or 1.0


def is_number(value: Any) -> bool:
    """Return whether a value of a log is a finite number, which excludes booleans."""
    # math.isfinite raises OverflowError for an integer of hundreds of digits.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _clamped(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(min(x, _LARGEST), max(-_LARGEST, min(y, _LARGEST))) for x, y in points]


def time_unit(seconds: float) -> tuple[str, int]:
    """Return the unit for a time axis that ends at `seconds`, and its length in seconds."""
    return ("hours", 3600) if seconds >= 10800 else ("minutes", 60) if seconds >= 180 else ("seconds", 1)


def _draw_line(axes: Axes, line: Line, shift: float, clip: bool) -> list[Any]:
    color, style = series_color(line.group), "--" if line.group >= COLORS else "-"
    artists: list[Any] = []
    for points in line.others:
        artists += axes.plot(*zip(*points, strict=True), style, color=color, linewidth=1.1, alpha=0.45)
    x, y = [x + shift for x, _ in line.points], [y for _, y in line.points]
    marker = MARKERS[line.group % len(MARKERS)] if len(line.points) <= _MOST_MARKERS else ""
    look: dict[str, Any] = {"linestyle": style, "marker": marker, "markersize": 6.5, "markeredgecolor": SURFACE}
    artists += axes.plot(x, y, color=color, clip_on=clip, **look)
    if line.errors:
        bars = axes.errorbar(x, y, line.errors, fmt="none", ecolor=color, elinewidth=1.5, alpha=0.6)
        artists += bars.lines[2]
    return artists


def _set_y_axis(axes: Axes, values: Sequence[float], log: bool, close: bool, top: float | None) -> None:
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = (high - low or abs(high) or 1) * 0.06
    if log and low > 1 / _LARGEST:
        axes.set_yscale("log")
        axes.set_ylim(low / (high / low) ** 0.04 * 0.995, high * (high / low) ** 0.04 * 1.005)
    elif close:
        axes.set_ylim(low - margin, high + margin)
    else:
        axes.set_ylim(min(0.0, low), high + margin if top is None else top)
    format_axis(axes.yaxis)


def format_axis(axis: Axis) -> None:
    """Set about five ticks with short decimal labels, on a logarithmic axis also between the powers of ten."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        if high / low > 10:
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high / low < 500 else (1,)))
        axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}".replace("-", "−"))


def draw_intervals(name: str, rows: Sequence[tuple[str, int, float, float]], label: str) -> str:
    """Return an SVG with one horizontal interval per row (name, group, value, half of the interval)."""
    with drawing(name, WIDTH, 34 * len(rows) + 40) as chart:
        chart.figure.set_layout_engine("constrained")
        axes = chart.axes
        for i, (_, group, value, half) in enumerate(rows):
            marker = MARKERS[group % len(MARKERS)]
            bars = axes.errorbar(value, i, xerr=half, fmt=marker, markersize=9, color=series_color(group), capsize=4)
            offset: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            text = axes.annotate(f"{value:.2f}", (1, i), xycoords=("axes fraction", "data"), **offset)
            chart.tag(bars.lines[0], *bars.lines[1], *bars.lines[2], text, data_group=group)
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", labelcolor=INK)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        format_axis(axes.xaxis)
        return chart.svg(label)


def standalone(svg: str, style: str = "") -> str:
    """Return an `<svg>` element as the content of a file: with its size, colours, a background and a font."""
    width, height = re.findall(r'viewBox="0 0 (\S+) (\S+)"', svg)[0]
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
    css = f"{read_assets('colors.css')}\nsvg {{ background: var(--surface); font: 12px {font}; }}\n{style}"
    head, rest = svg.split(">", 1)
    return f'{head} width="{width}" height="{height}">\n<style>\n{css}\n</style>{rest}\n'
