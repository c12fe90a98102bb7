"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Container

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


def plain_table(*heads: str, left: Container[str] = ()) -> Table:
    """Return a table without borders; columns are right-aligned except the first and those in `left`."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", collapse_padding=True)
    for i, head in enumerate(heads):
        justify = "left" if i == 0 or head in left else "right"
        table.add_column(Text(head), justify=justify, vertical="top", no_wrap=i > 0)  # type: ignore[arg-type]
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table and an empty line.  In a narrow console, lines are wrapped and numbers are not truncated."""
    needed = Measurement.get(console, console.options.update(width=10_000), table).maximum
    console.width = max(console.width, needed)
    console.print(table)
    console.print()
