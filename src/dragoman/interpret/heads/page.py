"""An atlas as a table in the terminal, and as a page with every head, its attention maps and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dragoman.cli.tables import plain_table, print_table
from dragoman.interpret.heads.atlas import BROAD, MOST, REACH, Atlas, AtlasExample, Head
from dragoman.pages.packing import packed
from dragoman.pages.page import render, write_page

_COLUMNS = ("entropy", "relative", "confidence", "offset", "weight", "same", "end", "first")


def print_atlas(atlas: Atlas, console: Console) -> None:
    """Print the label and the measures of every head, and the costs of the sub-layers."""
    aligned, cost = atlas.aligned > 0, atlas.cost_lines > 0
    optional = (*(["AER"] if aligned else []), *(["cost"] if cost else []))
    table = plain_table("attention", "head", "label", *_COLUMNS, *optional, left=("label",))
    previous = ""
    for head in atlas.heads:
        name = Text(head.attention if head.attention != previous else "", "bold")
        previous = head.attention
        label = Text(head.label, "bold green" if head.label == "aligning" else "")
        table.add_row(name, Text(str(head.number)), label, *map(Text, _cells(head, aligned, cost)))
    print_table(console, table)
    if atlas.sublayers:
        costs = plain_table("without", "cost")
        for sublayer in atlas.sublayers:
            costs.add_row(Text(sublayer.name), Text(f"{sublayer.cost:+.4f}"))
        print_table(console, costs)
    targets = "the model's own output" if atlas.own else "the given targets"
    console.print(
        f"{atlas.lines:,} lines, {atlas.tokens:,} target tokens, loss {atlas.loss:.4f} nats per token on {targets}",
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


def write_atlas(path: Path, atlas: Atlas, examples: Sequence[AtlasExample], model: str, language: str = "auto") -> Path:
    """Write the page of a model named `model`, which opens in `language` (see `render`), atomically; return `path`.

    Raises DragomanError if it cannot be written.
    """
    data = atlas.to_json() | {
        "model": model,
        "reach": REACH,
        "most": MOST,
        "broad": BROAD,
        "examples": [
            {name: getattr(example, name) for name in ("source", "written", "read")}
            | {"maps": {name: packed(weights) for name, weights in example.maps.items()}}
            for example in examples
        ],
    }
    return write_page(path, render("atlas.html", language=language, title=f"Attention heads of {model}", data=data))
