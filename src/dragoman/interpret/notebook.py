"""Results as HTML in a notebook: small tables, which follow the colours of the notebook, light or dark.

`Displayed._repr_html_` (extras.py) calls `to_html`.  All texts are escaped; numbers are rounded, and complete in the
tooltip of their cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

MOST_ROWS = 50
"""Rows of a table; a line below it counts the others."""
MOST_CELLS = 2500
"""Cells of a matrix that is drawn."""
_BLUE, _ORANGE = "63,127,224", "217,130,43"
_STRONGEST = 0.55
"""Opacity of the strongest colour: text in black and in white can be read on it."""


def to_html(value: Any) -> str:
    """Return a result as HTML; that of a list is one table if its items are translations."""
    if isinstance(value, list):
        if value and type(value[0]).__name__ == "Translation":
            return _translations(value)
        return "".join(map(to_html, value[:5])) + (f"<p>… {len(value) - 5:,} more</p>" if len(value) > 5 else "")
    return next(_FORMS[base.__name__] for base in type(value).__mro__ if base.__name__ in _FORMS)(value)


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Return a table of texts, numbers, and markup that is already escaped (`Markup`)."""
    rows = list(rows)
    caption += f" ({len(rows) - MOST_ROWS:,} more rows)" if len(rows) > MOST_ROWS else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MOST_ROWS])
    titles = "".join(f'<th style="text-align:left;padding:2px 8px">{escape(str(title))}</th>' for title in head)
    title = f'<caption style="text-align:left">{escape(caption)}</caption>' if caption else ""
    return (
        f'<table style="border-collapse:collapse">{title}<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>'
    )


class Markup(str):
    """HTML."""


def _cell(value: Any) -> str:
    style = "text-align:left;padding:2px 8px;vertical-align:top"
    if isinstance(value, float):
        return f'<td style="{style};text-align:right" title="{value!r}">{value:.4g}</td>'
    return f'<td style="{style}">{value if isinstance(value, Markup) else escape(str(value))}</td>'


def _colored(text: str, share: float, title: str, color: str) -> str:
    opacity = _STRONGEST * min(1.0, max(0.0, share))
    return f'<span style="background:rgba({color},{opacity:.3f})" title="{title}">{escape(text)}</span>'


def _tokens(tokens: Sequence[str], log_probs: Sequence[float]) -> Markup:
    """Return tokens with their probabilities in tooltips; the less probable a token, the more orange it is."""
    pairs = [(token, math.exp(log_prob)) for token, log_prob in zip(tokens, log_probs, strict=True)]
    return Markup(" ".join(_colored(token, 1 - p, f"p = {p:.4g}", _ORANGE) for token, p in pairs))


def _translations(translations: Sequence[Any]) -> str:
    rows = ([t.source, t.text, t.score, ", ".join(t.flags), _tokens(t.tokens, t.token_log_probs)] for t in translations)
    return table(["source", "translation", "score", "flags", "tokens (orange: improbable)"], rows)


def _translation(t: Any) -> str:
    best = table(["n-best", "score", "log_prob"], ([n.text, n.score, n.log_prob] for n in t.nbest))
    return _translations([t]) + (best if len(t.nbest) > 1 else "")


def matrix(rows: Sequence[Any], columns: Sequence[Any], values: Sequence[Sequence[float]], caption: str = "") -> str:
    """Return numbers (rows, columns) as a table of coloured cells: blue above 0, orange below, by the largest one."""
    if len(rows) * len(columns) > MOST_CELLS:
        return f"<p>{escape(caption)} {len(rows):,} × {len(columns):,} numbers</p>"
    largest = max((abs(x) for row in values for x in row), default=0.0) or 1.0
    body = (
        [name, *(Markup(_colored(f"{x:.2f}", abs(x) / largest, repr(x), _BLUE if x >= 0 else _ORANGE)) for x in row)]
        for name, row in zip(rows, values, strict=True)
    )
    return table(["", *columns], body, caption)


def _recording(recording: Any) -> str:
    """Return one row per tap: its axes, the range of its numbers, and small maps of its attention weights."""
    rows = []
    for name, calls in recording.items():
        first, axes = calls[0] if calls else None, recording.axes[name]
        shape = " × ".join(f"{size} {axis}" for size, axis in zip(getattr(first, "shape", ()), axes, strict=False))
        numbers: list[Any] = ["", "", ""]
        if first is not None and first.numel():
            mean = sum(float(x.double().sum()) for x in calls) / sum(x.numel() for x in calls)
            numbers = [min(float(x.min()) for x in calls), mean, max(float(x.max()) for x in calls)]
        maps = _maps(first) if len(calls) == 1 and axes[-2:] == ("query", "key") else ""
        rows.append([name, len(calls), shape, *numbers, maps])
    return table(["name", "calls", "shape of the first", "min", "mean", "max", "maps"], rows)


def _maps(weights: Any) -> Markup:
    """Return a map per head of the first row of weights (N, H, Tq, Tk): a row per query, blue by weight."""
    if weights.dim() != 4 or weights[0].numel() > MOST_CELLS:
        return Markup()
    maps = []
    for head, values in enumerate(weights[0].tolist()):
        cells = (
            f'<rect x="{c}" y="{r}" width="1" height="1" fill="rgba({_BLUE},{min(1.0, max(0.0, x)):.3f})"/>'
            for r, row in enumerate(values)
            for c, x in enumerate(row)
        )
        box = f"0 0 {len(values[0])} {len(values)}"
        size = f'width="{5 * len(values[0])}" height="{5 * len(values)}"'
        maps.append(f'<svg role="img" aria-label="head {head}" viewBox="{box}" {size}>{"".join(cells)}</svg>')
    return Markup(" ".join(maps))


def _comparison(comparison: Any) -> str:
    from dragoman.evaluation.compare.page import cell_text, columns, differences

    shown = columns(comparison)
    rows = (
        [group.name, ", ".join(differences(group, comparison)), *(" ".join(cell_text(group, c)).strip() for c in shown)]
        for group in comparison.groups
    )
    return table(["run", "differs in", *(column.title for column in shown)], rows)


_FORMS: dict[str, Callable[[Any], str]] = {
    "Translation": _translation,
    "TargetScore": lambda score: table(
        ["log_prob", "tokens"], [[score.log_prob, _tokens(score.tokens, score.token_log_probs)]]),
    "Alignment": lambda one: matrix(one.target, one.source, one.weights.tolist(), "attention of target to source"),
    "Recording": _recording,
    "RunComparison": _comparison,
    "Attribution": lambda one: matrix(
        one.target, [*one.source, *one.prefix], one.all_attributions.tolist(), "contributions to each output"),
    "ScoreParts": lambda one: (
        table(["component", "of"], [[k, s] for s in ("queries", "keys") for k in getattr(one, s)])
        + matrix(range(len(one.scores)), range(one.scores.size(1)), one.scores.tolist(), "scores")),
    "PathEffect": lambda one: matrix(
        ["clean", "corrupted", "patched", "effect"], range(len(one.clean)),
        [x.tolist() for x in (one.clean, one.corrupted, one.patched, one.effect)], "log-probability of each target"),
}  # fmt: skip
"""Class of a result -> its HTML.  By name, because most of their modules need PyTorch."""
