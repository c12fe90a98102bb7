"""The demo's report: one self-contained page on how a model learned, what it attends to and what it translates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dragoman.errors import check_problems
from dragoman.pages.charts import Line, draw_curves, is_number, readout, time_unit
from dragoman.pages.page import render, write_page

__all__ = ["AttentionPicture", "DemoReport", "Sample", "write_report"]

_CHARTS: tuple[tuple[str, float | None, dict[str, str]], ...] = (
    ("Loss", None, {"loss": "training", "valid_loss": "validation"}),
    ("Validation scores", 100, {"exact_match": "exact match, %", "bleu": "BLEU"}),
    ("Learning rate", None, {"learning_rate": "learning rate"}),
    ("Speed", None, {"tokens_per_second": "tokens per second"}),
)
"""Title, upper end of the y axis, and the names of the log's keys."""

_CHINESE = {
    "Loss": "损失",
    "training": "训练",
    "validation": "验证",
    "Validation scores": "验证集上的得分",
    "exact match, %": "完全匹配率（%）",
    "BLEU": "BLEU",
    "Learning rate": "学习率",
    "learning rate": "学习率",
    "Speed": "速度",
    "tokens per second": "每秒词元数",
}


@dataclass(frozen=True)
class Sample:
    """An unseen text with its reference and its translation; `score` is the length-penalized log-probability."""

    source: str
    reference: str
    translation: str
    correct: bool
    score: float


@dataclass(frozen=True)
class AttentionPicture:
    """The cross-attention of one translation with S source and T target tokens.

    weights: (layers, heads, T, S); each row of S sums to 1.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    weights: list[list[list[list[float]]]]


@dataclass(frozen=True)
class DemoReport:
    """The content of the page.

    history: rows of log.jsonl (step, loss, learning_rate, tokens_per_second, seconds; after a validation also
    exact_match as a share, valid_loss and bleu).  seconds: of training.  exact_match: share of `test_items`, 0 to 1.
    target, target_code: name and code of the target language.  word_order: a sentence on how it differs from English.
    chinese: "title", "target" and "word_order" in Chinese; what is missing is shown in English.
    """

    title: str
    target: str
    target_code: str
    word_order: str
    config: dict[str, Any]
    parameters: int
    seconds: float
    device: str
    history: list[dict[str, Any]]
    exact_match: float
    test_items: int
    samples: list[Sample]
    attention: AttentionPicture
    chinese: dict[str, str] = field(default_factory=dict)


def write_report(path: Path, report: DemoReport, language: str = "auto") -> Path:
    """Write the page, which opens in `language` (see `render`), to `path` atomically and return `path`.

    Raises UsageError if the report is inconsistent, DragomanError if the file cannot be written.
    """
    _check(report)
    values: dict[str, Any] = {}
    charts = list(_charts(report, values))
    data = {**asdict(report), "charts": values}
    page = render("report.html", language=language, title=report.title, report=report, charts=charts, data=data)
    return write_page(path, page)


def _check(report: DemoReport) -> None:
    problems = []
    if not 0.0 <= report.exact_match <= 1.0:
        problems.append(f"exact_match = {report.exact_match}; accepted: a share from 0 to 1")
    picture = report.attention
    rows, columns = len(picture.target_tokens), len(picture.source_tokens)
    for layer, heads in enumerate(picture.weights):
        if len(heads) != len(picture.weights[0]):
            problems.append(f"attention layer {layer}: {len(heads)} heads, but layer 0 has {len(picture.weights[0])}")
        for head, weights in enumerate(heads):
            widths = sorted({len(row) for row in weights})
            if len(weights) != rows or widths not in ([columns], []):
                problems.append(
                    f"attention layer {layer}, head {head}: {len(weights)} rows of {widths} weights; accepted: "
                    f"{rows} rows (target tokens) of {columns} weights (source tokens)"
                )
    check_problems("inconsistent report:", problems)


def _charts(report: DemoReport, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each chart over steps and over time; `values` receives the values to show under the pointer."""
    seconds = max((row["seconds"] for row in report.history if is_number(row.get("seconds"))), default=0.0)
    for axis, (unit, size) in (("step", ("steps", 1)), ("seconds", time_unit(seconds))):
        for title, top, names in _CHARTS:
            lines = []
            for group, (key, name) in enumerate(names.items()):
                rows = [row for row in report.history if is_number(row.get(axis)) and is_number(row.get(key))]
                factor = 100 if key == "exact_match" else 1
                if rows:
                    lines.append(Line(name, [(row[axis] / size, factor * row[key]) for row in rows], group))
            svg, identifier = "", f"{next(iter(names))}-{axis}"
            if lines:
                svg = draw_curves(identifier, lines, unit, top=top)
                values[identifier] = readout(lines, unit, chinese=_CHINESE)
            legend = [_in_both(name) for name in names.values()]
            yield {"title": _in_both(title), "axis": axis, "svg": svg, "values": identifier, "legend": legend}


def _in_both(name: str) -> dict[str, str]:
    return {"en": name, "zh": _CHINESE[name]}
