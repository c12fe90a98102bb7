"""The demo's report: one self-contained page that shows how a model learned and what it looks at.

The page draws everything itself from one block of JSON.  It needs no network and asks for none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dragoman.errors import UsageError
from dragoman.pages.page import render, write_page

__all__ = ["AttentionPicture", "DemoReport", "Sample", "write_report"]


@dataclass(frozen=True)
class Sample:
    """One unseen text, its one right answer and the model's; `score` is its length-penalised log-probability."""

    source: str
    reference: str
    translation: str
    correct: bool
    score: float


@dataclass(frozen=True)
class AttentionPicture:
    """The cross-attention of one translation.

    source_tokens: S pieces.  target_tokens: T pieces.  weights: (layers, heads, T, S), each row of S sums to 1.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    weights: list[list[list[list[float]]]]


@dataclass(frozen=True)
class DemoReport:
    """All that the page shows.

    history: rows of log.jsonl (step, loss, learning_rate, tokens_per_second, seconds; rows of a validation also
    exact_match, valid_loss, bleu).  seconds: of training.  exact_match: share from 0 to 1 of test_items.
    """

    title: str
    config: dict[str, Any]
    parameters: int
    seconds: float
    device: str
    history: list[dict[str, Any]]
    exact_match: float
    test_items: int
    samples: list[Sample]
    attention: AttentionPicture


def write_report(path: Path, report: DemoReport) -> Path:
    """Write the page to `path`, whole or not at all, and return `path`.

    Raises UsageError where the report contradicts itself, DragomanError where the file cannot be written.
    """
    _check(report)
    return write_page(path, render("report.html", title=report.title, data=asdict(report)))


def _check(report: DemoReport) -> None:
    problems = []
    if not 0.0 <= report.exact_match <= 1.0:
        problems.append(f"exact_match {report.exact_match}: accepted is a share from 0 to 1")
    picture = report.attention
    rows, columns = len(picture.target_tokens), len(picture.source_tokens)
    for layer, heads in enumerate(picture.weights):
        if len(heads) != len(picture.weights[0]):
            problems.append(f"attention layer {layer}: {len(heads)} heads, layer 0 has {len(picture.weights[0])}")
        for head, weights in enumerate(heads):
            widths = sorted({len(row) for row in weights})
            if len(weights) != rows or widths not in ([columns], []):
                problems.append(
                    f"attention layer {layer}, head {head}: {len(weights)} rows of {widths} weights; accepted are "
                    f"{rows} rows (target pieces) of {columns} weights (source pieces)"
                )
    if problems:
        raise UsageError("\n".join(["the report contradicts itself", *(f"  - {problem}" for problem in problems)]))
