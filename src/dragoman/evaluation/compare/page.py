"""The tables of a comparison in the terminal, and its page with tables and charts."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.evaluation.compare.curves import panels, values_of_test
from dragoman.evaluation.compare.runs import Group, RunComparison, short_names
from dragoman.evaluation.compare.scores import EvalSet
from dragoman.pages.charts import COLORS, MARKERS
from dragoman.pages.page import render, write_page
from dragoman.pages.tables import plain_table, print_table

__all__ = ["columns", "print_comparison", "write_comparison"]

_ABSENT = object()


def _millions(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e5 else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    return f"{seconds / 60:.0f} min" if rounded < 7200 else f"{rounded // 3600} h {rounded % 3600 // 60} min"


@dataclass(frozen=True)
class Column:
    """One number of every group.

    better: +1 if larger is better, -1 if smaller is, 0 for a cost.  bar: the page draws a bar.  brief: the table in the
    terminal has the column.
    """

    key: str
    title: str
    show: Callable[[float], str]
    better: int = 0
    bar: bool = False
    brief: bool = True


_COST = (
    Column("parameters", "parameters", _millions, bar=True),
    Column("steps", "steps", "{:,.0f}".format, bar=True),
    Column("seconds", "time", _duration, bar=True),
    Column("tokens_per_second", "tokens/s", "{:,.0f}".format, bar=True),
    Column("memory_mb", "memory MB", "{:,.0f}".format, bar=True),
)
_VALID = (
    Column("valid.valid_loss", "valid loss", "{:.3f}".format, -1),
    Column("valid.perplexity", "perplexity", "{:.2f}".format, -1, brief=False),
    Column("valid.bits_per_character", "bits/character", "{:.3f}".format, -1),
    Column("valid.bleu", "valid BLEU", "{:.2f}".format, +1),
    Column("valid.chrf", "valid chrF", "{:.2f}".format, +1, brief=False),
    Column("valid.exact_match", "exact match %", "{:.1f}".format, +1, brief=False),
    Column("valid.accuracy", "accuracy %", "{:.2f}".format, +1),
    Column("valid.precision", "precision %", "{:.2f}".format, +1, brief=False),
    Column("valid.recall", "recall %", "{:.2f}".format, +1, brief=False),
    Column("valid.f1", "F1 %", "{:.2f}".format, +1),
)
_TEST = (
    Column("test.bleu", "test BLEU", "{:.2f}".format, +1),
    Column("test.chrf", "test chrF", "{:.2f}".format, +1),
)


def columns(comparison: RunComparison) -> list[Column]:
    """Return the columns with a number in at least one group; scores without a predefined title get their name."""
    present = dict.fromkeys(key for group in comparison.groups for key in group.numbers)
    known = {column.key for column in _VALID}
    others = [key for key in present if key.startswith("valid.") and key not in known]
    extra = (Column(key, key.removeprefix("valid.").replace("_", " "), "{:.3f}".format, brief=False) for key in others)
    return [column for column in (*_TEST, *_VALID, *extra, *_COST) if column.key in present]


def cell_text(group: Group, column: Column) -> tuple[str, str]:
    """Return the mean, and `±` half of the 95 % interval and `σ` the standard deviation over seeds, if known."""
    number = group.numbers.get(column.key)
    if number is None:
        return "–", ""
    half = group.numbers.get(f"{column.key}_half")
    notes = [] if half is None else [f"±{column.show(half.mean)}"]
    if number.std and column.key != "parameters":
        notes.append(f"σ{column.show(number.std)}")
    return column.show(number.mean), " ".join(notes)


def value_text(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def differences(group: Group, comparison: RunComparison) -> list[str]:
    """Return the values that at most half of the groups share, rare ones first: `position rotary`, `n_heads 4`, ..."""
    names = short_names(comparison.differing)

    def sharers(key: str) -> int:
        return sum(other.differs.get(key, _ABSENT) == group.differs[key] for other in comparison.groups)

    special = [key for key in group.differs if 2 * sharers(key) <= len(comparison.groups)]
    return [f"{names[key]} {value_text(group.differs[key])}" for key in sorted(special, key=sharers)]


def best_groups(comparison: RunComparison, column: Column) -> list[Group]:
    """Return the groups with the best number; none for a cost or if all are equal."""
    having = [group for group in comparison.groups if column.key in group.numbers]
    worth = [column.better * group.numbers[column.key].mean for group in having]
    return [group for group, value in zip(having, worth, strict=True) if min(worth) < value == max(worth)]


def print_comparison(comparison: RunComparison, console: Console) -> None:
    """Print the numbers, the differences between the configurations, and BLEU by source length."""
    print_table(console, _numbers_table(comparison))
    if comparison.differing or comparison.seeds_differ:
        print_table(console, _differences_table(comparison))
    if comparison.test is not None:
        print_table(console, _lengths_table(comparison, comparison.test))
    for note in _notes(comparison):
        console.print(note, style="dim", soft_wrap=True)
    if comparison.test is not None:
        console.print(_signatures(comparison), style="dim", soft_wrap=True)


def _numbers_table(comparison: RunComparison) -> Table:
    shown = [column for column in columns(comparison) if column.brief]
    best = {column.key: best_groups(comparison, column) for column in shown}
    several = comparison.seeds_differ or any(len(group.runs) > 1 for group in comparison.groups)
    table = plain_table("run", *(["seeds"] if several else []), *(column.title for column in shown))
    for group in comparison.groups:
        cells = (
            Text(
                " ".join(cell_text(group, column)).strip(),
                "bold green" if group in best[column.key] else "",
                no_wrap=True,
            )
            for column in shown
        )
        table.add_row(_label(group, comparison), *([Text(_seeds(group))] if several else []), *cells)
    return table


def _label(group: Group, comparison: RunComparison) -> Text:
    special = differences(group, comparison)
    text = ", ".join(special[:4]) + (", …" if len(special) > 4 else "")
    return Text.assemble((group.name, "bold"), *((f"\n  {line}", "dim") for line in textwrap.wrap(text, 40)))


def _differences_table(comparison: RunComparison) -> Table:
    table = plain_table("differs in", *(group.name for group in comparison.groups))
    for key in comparison.differing:
        values = (value_text(group.differs[key]) if key in group.differs else "–" for group in comparison.groups)
        table.add_row(key, *map(Text, values))
    if comparison.seeds_differ:
        table.add_row("train.seed", *(Text(_seeds(group)) for group in comparison.groups))
    return table


def _seeds(group: Group) -> str:
    return ", ".join(map(str, group.seeds))


def _lengths_table(comparison: RunComparison, test: EvalSet) -> Table:
    buckets = comparison.groups[0].by_length
    table = plain_table(f"BLEU by {test.unit}", *(bucket.title for bucket in buckets))
    table.add_row("lines", *(f"{bucket.sentences:,}" for bucket in buckets), style="dim")
    for group in comparison.groups:
        table.add_row(Text(group.name, "bold"), *(f"{b.bleu.score:.1f} ±{b.bleu.half:.1f}" for b in group.by_length))
    return table


def _notes(comparison: RunComparison) -> list[str]:
    """Return explanations of the symbols that occur in the tables."""
    notes = []
    if any(len(group.runs) > 1 for group in comparison.groups):
        notes.append("σ: standard deviation over the seeds; the number before it is the mean.")
    if comparison.seeds_differ:
        notes.append(
            "The runs have different seeds, which also change the scores; train each configuration with the same seeds."
        )
    if comparison.test is not None:
        notes.append(
            f"±: half of the 95 % confidence interval on {len(comparison.test.sources):,} test lines, "
            f"{comparison.samples:,} bootstrap resamples."
        )
    return notes


def _signatures(comparison: RunComparison) -> str:
    test = next(run.test for run in comparison.runs if run.test is not None)
    return f"BLEU {test.bleu_signature}; chrF {test.chrf_signature}"


def write_comparison(path: Path, comparison: RunComparison) -> Path:
    """Write the page of a comparison to `path` atomically and return `path`.

    Raises DragomanError if the file cannot be written.
    """
    shown = columns(comparison)
    charts: dict[str, Any] = {}
    values = {
        "title": "One run" if len(comparison.runs) == 1 else f"{len(comparison.runs)} runs side by side",
        "lead": _lead(comparison),
        "notes": _notes(comparison),
        "colors": COLORS,
        "markers": MARKERS,
        "columns": shown,
        "largest": {column.key: _largest(comparison, column.key) for column in shown if column.bar},
        "best": {column.key: best_groups(comparison, column) for column in shown},
        "comparison": comparison,
        "cell_text": cell_text,
        "differences": differences,
        "value_text": value_text,
        "panels": list(panels(comparison, charts)),
        "test": comparison.test and values_of_test(comparison, comparison.test, charts),
        "signatures": comparison.test and _signatures(comparison),
    }
    return write_page(path, render("compare.html", data={"charts": charts}, **values))


def _lead(comparison: RunComparison) -> str:
    count, runs = len(comparison.groups), len(comparison.runs)
    seeds = f", {runs} runs with their seeds" if runs > count else ""
    if not comparison.differing:
        return f"One configuration{seeds}."
    names = short_names(comparison.differing)
    first, more = ", ".join(names[key] for key in comparison.differing[:4]), len(comparison.differing) - 4
    return f"{count} configurations{seeds}. They differ in {first}{f' and {more} more keys' if more > 0 else ''}."


def _largest(comparison: RunComparison, key: str) -> float:
    return max(group.numbers[key].mean for group in comparison.groups if key in group.numbers)
