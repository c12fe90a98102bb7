"""A comparison for people: a table in the terminal, and a page in one file with tables, curves and intervals."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dragoman.evaluation.compare.columns import Column, best_groups, cell_text, columns, differences, value_text
from dragoman.evaluation.compare.curves import panels, values_of_test
from dragoman.evaluation.compare.runs import Group, RunComparison, short_names
from dragoman.pages.charts import COLORS, MARKERS
from dragoman.pages.page import render, write_page

__all__ = ["print_comparison", "write_comparison"]


def _seeds(group: Group) -> str:
    return ", ".join(map(str, group.seeds))


# ---------------------------------------------------------------------------------------------------------- terminal


def print_comparison(comparison: RunComparison, console: Console) -> None:
    """The numbers as a table, then the keys in which the configurations differ, then BLEU by source length."""
    tables = [_numbers_table(comparison)]
    if comparison.differing:
        tables.append(_differences_table(comparison))
    if comparison.test is not None:
        tables.append(_lengths_table(comparison))
    for table in tables:
        # Rich would cut numbers short to fit; a line that wraps is better than a number that is wrong.
        needed = Measurement.get(console, console.options.update(width=10_000), table).maximum
        console.width = max(console.width, needed)
        console.print(table)
        console.print()
    if any(len(group.runs) > 1 for group in comparison.groups):
        console.print(
            "σ: standard deviation over the seeds; the number before it is their mean", style="dim", soft_wrap=True
        )
    if comparison.test is not None:
        console.print(
            f"±: half of the 95 % confidence interval, bootstrap of {len(comparison.test.sources):,} test lines, "
            f"{comparison.samples:,} resamples",
            style="dim",
            soft_wrap=True,
        )
        console.print(_signatures(comparison), style="dim", soft_wrap=True)


def _signatures(comparison: RunComparison) -> str:
    one = next(run.test for run in comparison.runs if run.test is not None)
    return f"BLEU {one.bleu_signature}; chrF {one.chrf_signature}"


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", collapse_padding=True)
    for i, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if i else "left", vertical="top", no_wrap=i > 0)
    return table


def _numbers_table(comparison: RunComparison) -> Table:
    shown = [column for column in columns(comparison) if column.brief]
    best = {column.key: best_groups(comparison, column) for column in shown}
    several = any(len(group.runs) > 1 for group in comparison.groups)
    table = _table("run", *(["seeds"] if several else []), *(column.title for column in shown))
    for group in comparison.groups:
        cells = [
            Text(cell_text(group, column), "bold green" if group in best[column.key] else "", no_wrap=True)
            for column in shown
        ]
        table.add_row(_label(group, comparison), *([Text(_seeds(group))] if several else []), *cells)
    return table


def _label(group: Group, comparison: RunComparison) -> Text:
    """Its name, and below what tells it apart."""
    said = differences(group, comparison)
    text = ", ".join(said[:4]) + (", …" if len(said) > 4 else "")
    return Text.assemble((group.name, "bold"), *((f"\n  {line}", "dim") for line in textwrap.wrap(text, 40)))


def _differences_table(comparison: RunComparison) -> Table:
    table = _table("differs in", *(group.name for group in comparison.groups))
    for key in comparison.differing:
        values = (value_text(group.differs[key]) if key in group.differs else "–" for group in comparison.groups)
        table.add_row(key, *(Text(value) for value in values))
    return table


def _lengths_table(comparison: RunComparison) -> Table:
    assert comparison.test is not None
    buckets = comparison.groups[0].by_length
    table = _table(f"BLEU by {comparison.test.unit}", *(bucket.title for bucket in buckets))
    table.add_row("lines", *(f"{bucket.sentences:,}" for bucket in buckets), style="dim")
    for group in comparison.groups:
        table.add_row(Text(group.name, "bold"), *(f"{b.bleu.score:.1f} ±{b.bleu.half:.1f}" for b in group.by_length))
    return table


# -------------------------------------------------------------------------------------------------------------- page


def write_comparison(path: Path, comparison: RunComparison) -> Path:
    """Write the page of a comparison to `path` atomically and return `path`.

    Raises DragomanError if the file cannot be written.
    """
    shown = columns(comparison)
    best = {column.key: best_groups(comparison, column) for column in shown}
    charts: dict[str, Any] = {}
    drawn = list(panels(comparison, charts))
    test = comparison.test and values_of_test(comparison, comparison.test, charts)
    page = render(
        "compare.html",
        title="One run" if len(comparison.runs) == 1 else f"{len(comparison.runs)} runs side by side",
        lead=_lead(comparison),
        notes=_notes(comparison),
        colors=COLORS,
        markers=MARKERS,
        columns=shown,
        rows=[
            {
                "name": group.name,
                "chips": _chips(group, comparison),
                "cells": [_cell(group, column, comparison, group in best[column.key]) for column in shown],
            }
            for group in comparison.groups
        ],
        groups=comparison.groups,
        differing=comparison.differing,
        value_text=value_text,
        panels=drawn,
        test=test,
        signatures=comparison.test and _signatures(comparison),
        data={"charts": charts},
    )
    return write_page(path, page)


def _lead(comparison: RunComparison) -> str:
    count, runs = len(comparison.groups), len(comparison.runs)
    seeds = f", {runs} runs with their seeds" if runs > count else ""
    names = short_names(comparison.differing)
    some = ", ".join(names[key] for key in comparison.differing[:4])
    more = len(comparison.differing) - 4
    if not comparison.differing:
        return f"One configuration{seeds}."
    return f"{count} configurations{seeds}. They differ in {some}{f' and {more} more keys' if more > 0 else ''}."


def _notes(comparison: RunComparison) -> str:
    """What the marks in the table mean, those that are there."""
    notes = ["Scores are of the best checkpoint, validation by greedy decoding; tokens/s is the median of the log."]
    if any(len(group.runs) > 1 for group in comparison.groups):
        notes.append("σ is the standard deviation over seeds, and the number before it their mean.")
    if comparison.test is not None:
        notes.append(
            f"± is half of the 95 % confidence interval of a score on {len(comparison.test.sources):,} test lines "
            f"({comparison.samples:,} bootstrap resamples)."
        )
    return " ".join(notes)


def _chips(group: Group, comparison: RunComparison) -> list[str]:
    """Return at most six differences of the group, and its seeds if there are several."""
    special = differences(group, comparison)
    more = [f"+{len(special) - 6}"] if len(special) > 6 else []
    return special[:6] + more + ([f"seeds {_seeds(group)}"] if len(group.runs) > 1 else [])


def _cell(group: Group, column: Column, comparison: RunComparison, best: bool) -> dict[str, Any]:
    """Return one table cell; `bar` is its value in percent of the largest value of the column, None without a bar."""
    number = group.numbers.get(column.key)
    text, *notes = re.split(r" (?=[±σ])", cell_text(group, column))
    bar = None
    if number is not None and column.bar:
        largest = max(other.numbers[column.key].mean for other in comparison.groups if column.key in other.numbers)
        bar = f"{100 * number.mean / largest:.1f}" if largest > 0 else None
    value = None if number is None else f"{number.mean:.10g}"
    return {"text": text, "notes": " ".join(notes), "best": best, "value": value, "bar": bar}
