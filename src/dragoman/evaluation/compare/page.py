"""A comparison for people: a table in the terminal, and a page in one file with tables, curves and intervals."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dragoman.evaluation.compare.columns import Column, best_groups, cell_text, columns, differences, value_text
from dragoman.evaluation.compare.runs import Curve, Group, RunComparison, short_names
from dragoman.pages.page import fill, web, whole_page, write_page

__all__ = ["print_comparison", "write_comparison"]

COLORS = 8
SHAPES = (  # around the origin, of about the same area
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-5L4.7 3.6H-4.7z",
    "M0-5.2L5.2 0L0 5.2L-5.2 0z",
    "M0 5L-4.7-3.6H4.7z",
    "M-1.6-4.8h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z",
)
MOST_POINTS = 200
_LOSSES = ("valid_loss", "loss", "perplexity", "bits_per_character")
_TITLES = {"loss": "training loss", "valid_loss": "validation loss", "bleu": "BLEU", "chrf": "chrF", "f1": "F1"}


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
    """Write the page to `path`, whole or not at all, and return `path`.  Raises DragomanError."""
    count, runs = len(comparison.groups), len(comparison.runs)
    title = "One run" if runs == 1 else f"{runs} runs side by side"
    parts = {
        "title": html.escape(title),
        "lead": html.escape(_lead(comparison, count, runs)),
        "numbers": _numbers_html(comparison),
        "notes": html.escape(_notes(comparison)),
        "test": _test_html(comparison),
        "differences": _differences_html(comparison),
    }
    styles, scripts = ("page.css", "compare.css"), ("page.js", "compare.js")
    body = fill(web("compare.html"), parts)
    return write_page(path, whole_page(title, body, "comparison", _page_data(comparison), styles, scripts))


def _lead(comparison: RunComparison, count: int, runs: int) -> str:
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


def _mark(index: int) -> str:
    """The group's colour and shape."""
    shape = SHAPES[index % len(SHAPES)]
    return (
        f'<svg class="mark s{index % COLORS}" width="14" height="14" viewBox="-7 -7 14 14" aria-hidden="true">'
        f'<path d="{shape}"/></svg>'
    )


def _name_html(index: int, group: Group, comparison: RunComparison) -> str:
    said = differences(group, comparison)
    chips = "".join(f"<span>{html.escape(text)}</span>" for text in said[:6])
    more = f"<span>+{len(said) - 6}</span>" if len(said) > 6 else ""
    seeds = f"<span>seeds {_seeds(group)}</span>" if len(group.runs) > 1 else ""
    below = f'<span class="chips">{chips}{more}{seeds}</span>' if chips or seeds else ""
    return f'<th scope="row">{_mark(index)}<b>{html.escape(group.name)}</b>{below}</th>'


def _numbers_html(comparison: RunComparison) -> str:
    shown = columns(comparison)
    best = {column.key: best_groups(comparison, column) for column in shown}
    most = {column.key: max(_means(comparison, column), default=0.0) for column in shown if column.bar}
    rows = []
    for index, group in enumerate(comparison.groups):
        cells = "".join(_number_html(group, c, group in best[c.key], most.get(c.key, 0.0)) for c in shown)
        rows.append(f'<tr data-group="{index}">{_name_html(index, group, comparison)}{cells}</tr>')
    heads = "".join(f'<th scope="col" class="number">{html.escape(column.title)}</th>' for column in shown)
    return _table_html("The runs and their numbers", f'<th scope="col">run</th>{heads}', rows, "numbers")


def _means(comparison: RunComparison, column: Column) -> list[float]:
    return [group.numbers[column.key].mean for group in comparison.groups if column.key in group.numbers]


def _number_html(group: Group, column: Column, best: bool, most: float) -> str:
    number = group.numbers.get(column.key)
    text, *rest = cell_text(group, column).replace(" ±", "\n±").replace(" σ", "\nσ").split("\n")
    small = f"<small>{' '.join(rest)}</small>" if rest else ""
    bar = f'<i style="width:{100 * number.mean / most:.1f}%"></i>' if number is not None and most > 0 else ""
    value = "" if number is None else f' data-value="{number.mean:.10g}"'
    return f'<td class="number{" best" if best else ""}"{value}><span>{text}</span>{small}{bar}</td>'


def _test_html(comparison: RunComparison) -> str:
    """The section on the test set; empty where none was decoded."""
    if comparison.test is None:
        return ""
    buckets = comparison.groups[0].by_length
    heads = "".join(f'<th scope="col" class="number">{bucket.title}</th>' for bucket in buckets)
    rows = [
        '<tr class="soft"><th scope="row">lines</th>'
        + "".join(f'<td class="number">{bucket.sentences:,}</td>' for bucket in buckets)
        + "</tr>"
    ]
    for index, group in enumerate(comparison.groups):
        cells = "".join(
            f'<td class="number"><span>{b.bleu.score:.1f}</span><small>±{b.bleu.half:.1f}</small></td>'
            for b in group.by_length
        )
        rows.append(
            f'<tr data-group="{index}"><th scope="row">{_mark(index)}{html.escape(group.name)}</th>{cells}</tr>'
        )
    head = f'<th scope="col">source {comparison.test.unit}</th>{heads}'
    parts = {
        "lengths": _table_html("BLEU by the length of the source", head, rows),
        "unit": comparison.test.unit,
        "signatures": html.escape(_signatures(comparison)),
    }
    return fill(web("compare_test.html"), parts)


def _differences_html(comparison: RunComparison) -> str:
    if not comparison.differing:
        return '<p class="what">Nothing but the seed: it is one configuration.</p>'
    heads = "".join(
        f'<th scope="col">{_mark(index)}{html.escape(group.name)}</th>' for index, group in enumerate(comparison.groups)
    )
    rows = []
    for key in comparison.differing:
        cells = "".join(
            f"<td>{html.escape(value_text(group.differs[key]))}</td>"
            if key in group.differs
            else '<td class="soft">–</td>'
            for group in comparison.groups
        )
        rows.append(f'<tr><th scope="row"><code>{html.escape(key)}</code></th>{cells}</tr>')
    return _table_html("Keys in which the configurations differ", f'<th scope="col">key</th>{heads}', rows)


def _table_html(caption: str, heads: str, rows: Sequence[str], name: str = "") -> str:
    identity = f' id="{name}"' if name else ""
    body = "\n".join(rows)
    return (
        f'<div class="scroll"><table{identity}><caption class="visually-hidden">{caption}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _page_data(comparison: RunComparison) -> dict[str, Any]:
    """What the scripts draw from."""
    keys = dict.fromkeys(key for run in comparison.runs for key in run.curves)
    ordered = sorted(keys, key=lambda key: _LOSSES.index(key) if key in _LOSSES else len(_LOSSES))
    return {
        "metrics": [
            {"key": key, "title": _TITLES.get(key, key.replace("_", " ")), "loss": key in _LOSSES} for key in ordered
        ],
        "groups": [_group_data(index, group) for index, group in enumerate(comparison.groups)],
    }


def _group_data(index: int, group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "color": index % COLORS,
        "dashed": index >= COLORS,
        "shape": SHAPES[index % len(SHAPES)],
        "runs": [
            {
                "name": run.name,
                "seed": seed,
                "curves": {key: _thinned(curve) for key, curve in run.curves.items()},
                "bleu": run.test and [run.test.bleu.score, run.test.bleu.half],
                "chrf": run.test and [run.test.chrf.score, run.test.chrf.half],
            }
            for run, seed in zip(group.runs, group.seeds, strict=True)
        ],
        "lengths": [[b.title, b.sentences, b.bleu.score, b.bleu.half] for b in group.by_length],
    }


def _thinned(curve: Curve) -> list[tuple[float, float, float]]:
    """At most MOST_POINTS points, each the mean of as many neighbours: less noise, and a small page."""
    size = -(-len(curve) // MOST_POINTS)
    return [_middle(curve[i : i + size]) for i in range(0, len(curve), size)] if size > 1 else list(curve)


def _middle(points: Iterable[tuple[float, float, float]]) -> tuple[float, float, float]:
    steps, seconds, values = zip(*points, strict=True)
    return sum(steps) / len(steps), sum(seconds) / len(seconds), sum(values) / len(values)
