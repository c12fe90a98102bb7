"""An atlas for people: a table in the terminal, and a page in one file with every head, its maps and its cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from dragoman.interpret.heads.atlas import BROAD, MOST, REACH, Atlas, Example, Head
from dragoman.pages.packing import packed
from dragoman.pages.page import render, write_page
from dragoman.pages.tables import plain_table, print_table

__all__ = ["print_atlas", "write_atlas"]

_COLUMNS = ("entropy", "of largest", "confidence", "offset", "weight", "same", "end", "first")


# ---------------------------------------------------------------------------------------------------------- terminal


def print_atlas(atlas: Atlas, console: Console) -> None:
    """Every head with its label and numbers, then what sub-layers cost."""
    aligned, cost = atlas.aligned > 0, atlas.cost_lines > 0
    more = (*(["AER"] if aligned else []), *(["cost"] if cost else []))
    table = plain_table("attention", "head", "label", *_COLUMNS, *more, left=("label",))
    before = ""
    for head in atlas.heads:
        name = head.attention if head.attention != before else ""
        before = head.attention
        label = Text(head.label, "bold green" if head.label == "aligning" else "")
        table.add_row(Text(name, "bold"), Text(str(head.number)), label, *map(Text, _cells(head, aligned, cost)))
    print_table(console, table)
    if atlas.sublayers:
        costs = plain_table("without", "cost")
        for part in atlas.sublayers:
            costs.add_row(Text(part.name), Text(f"{part.cost:+.4f}"))
        print_table(console, costs)
    whose = "the model's own output" if atlas.own else "the given targets"
    console.print(
        f"{atlas.lines:,} lines, {atlas.tokens:,} target tokens, loss {atlas.loss:.4f} nats a token on {whose}",
        style="dim",
        soft_wrap=True,
    )


def _cells(head: Head, aligned: bool, cost: bool) -> list[str]:
    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    offset = "–" if head.offset is None else f"{head.offset:+d}" if head.offset else "0"
    cells = [f"{head.entropy:.2f}", share(head.relative_entropy), share(head.confidence), offset, share(head.at_offset)]
    cells += [share(head.same), share(head.end), share(head.first)]
    cells += [share(head.aer)] if aligned else []
    return cells + (["–" if head.cost is None else f"{head.cost:+.4f}"] if cost else [])


# -------------------------------------------------------------------------------------------------------------- page


def write_atlas(path: Path, atlas: Atlas, examples: Sequence[Example], model: str) -> Path:
    """Write the page to `path`, whole or not at all, and return `path`.  model: its name.  Raises DragomanError."""
    data = _page_data(atlas, examples, model)
    return write_page(path, render("atlas.html", title=f"Atlas of {model}", data=data))


def _page_data(atlas: Atlas, examples: Sequence[Example], model: str) -> dict[str, Any]:
    about = {f.name: getattr(atlas, f.name) for f in dataclasses.fields(atlas) if f.name not in ("heads", "sublayers")}
    return {
        **about,
        "model": model,
        "reach": REACH,
        "most": MOST,
        "broad": BROAD,
        "heads": [head.to_json() for head in atlas.heads],
        "sublayers": [dataclasses.asdict(part) for part in atlas.sublayers],
        "examples": [_example_data(example) for example in examples],
    }


def _example_data(example: Example) -> dict[str, Any]:
    texts = {"source": example.source, "written": example.written, "read": example.read}
    return {**texts, "maps": {name: packed(weights) for name, weights in example.maps.items()}}
