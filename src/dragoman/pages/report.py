"""The demo's report: one self-contained page on how a model learned, what it attends to and what it translates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.pages.charts import Line, draw_curves, is_number, readout, time_unit
from dragoman.pages.page import packed, render, write_page

_CHARTS: tuple[tuple[tuple[str, str], float | None, dict[str, tuple[str, str]]], ...] = (
    (("Loss", "损失"), None, {"loss": ("training", "训练"), "valid_loss": ("validation", "验证")}),
    (("Validation scores", "验证集上的得分"), 100,
     {"exact_match": ("exact match, %", "完全匹配率（%）"), "bleu": ("BLEU", "BLEU")}),
    (("Learning rate", "学习率"), None, {"learning_rate": ("learning rate", "学习率")}),
    (("Speed", "速度"), None, {"tokens_per_second": ("tokens per second", "每秒词元数")}),
)  # fmt: skip
"""Title, upper end of the y axis, and the names of the log's keys, in English and Chinese."""


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

    weights: (heads, T, S) per layer; each row of S sums to 1.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    weights: Sequence[Tensor]


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

    Raises DragomanError if the file cannot be written.
    """
    values: dict[str, Any] = {}
    charts = list(_charts(report, values))
    attention = asdict(report.attention) | {"weights": [packed(weights) for weights in report.attention.weights]}
    data = {**asdict(report), "charts": values, "attention": attention}
    page = render("report.html", language=language, title=report.title, report=report, charts=charts, data=data)
    return write_page(path, page)


def _charts(report: DemoReport, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each chart over steps and over time; `values` receives the values to show under the pointer."""
    seconds = max((row["seconds"] for row in report.history if is_number(row.get("seconds"))), default=0.0)
    for axis, (unit, size) in (("step", ("steps", 1)), ("seconds", time_unit(seconds))):
        for title, top, names in _CHARTS:
            lines = []
            for group, (key, (name, _)) in enumerate(names.items()):
                rows = [row for row in report.history if is_number(row.get(axis)) and is_number(row.get(key))]
                factor = 100 if key == "exact_match" else 1
                if rows:
                    lines.append(Line(name, [(row[axis] / size, factor * row[key]) for row in rows], group))
            svg, identifier = "", f"{next(iter(names))}-{axis}"
            if lines:
                svg = draw_curves(identifier, lines, unit, top=top)
                values[identifier] = readout(lines, unit, chinese=dict(names.values()))
            title_text, *legend = ({"en": english, "zh": chinese} for english, chinese in (title, *names.values()))
            yield {"title": title_text, "axis": axis, "svg": svg, "values": identifier, "legend": legend}
