"""The tables of a comparison in the terminal, and its page with tables and charts."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dragoman.evaluation.compare.columns import best_groups, cell_text, columns, differences, value_text
from dragoman.evaluation.compare.curves import panels, values_of_test
from dragoman.evaluation.compare.runs import Group, RunComparison, short_names
from dragoman.evaluation.compare.scores import EvalSet
from dragoman.pages.charts import COLORS, MARKERS
from dragoman.pages.page import render, write_page
from dragoman.pages.tables import plain_table, print_table

__all__ = ["print_comparison", "write_comparison"]


def _seeds(group: Group) -> str:
    return ", ".join(map(str, group.seeds))


# ---------------------------------------------------------------------------------------------------------- terminal


def print_comparison(comparison: RunComparison, console: Console) -> None:
    """Print the numbers, the differences between the configurations, and BLEU by source length."""
    print_table(console, _numbers_table(comparison))
    if comparison.differing:
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
    several = any(len(group.runs) > 1 for group in comparison.groups)
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
    return table


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
    if comparison.test is not None:
        notes.append(
            f"±: half of the 95 % confidence interval on {len(comparison.test.sources):,} test lines, "
            f"{comparison.samples:,} bootstrap resamples."
        )
    return notes


def _signatures(comparison: RunComparison) -> str:
    test = next(run.test for run in comparison.runs if run.test is not None)
    return f"BLEU {test.bleu_signature}; chrF {test.chrf_signature}"


# -------------------------------------------------------------------------------------------------------------- page


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
