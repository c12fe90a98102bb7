"""The command that puts runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import AsJson, Device, Tokenize, app

__all__ = ["compare"]


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("compare.html"),
    source: Annotated[Path | None, typer.Option(help="Source text to translate, one sentence a line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Its reference translations, one a line.")] = None,
    tokenize: Tokenize = "auto",
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Runs side by side: what differs, curves, cost, scores; as tables and as a page."""
    from dragoman.cli.progress import RichReporter, console
    from dragoman.device import resolve_device
    from dragoman.evaluation.compare import compare_runs
    from dragoman.evaluation.compare.page import print_comparison, write_comparison

    log = RichReporter().log
    comparison = compare_runs(runs, source, reference, device=resolve_device(device), tokenize=tokenize, log=log)
    page = write_comparison(out, comparison)
    if as_json:
        typer.echo(json.dumps(comparison.to_json(), ensure_ascii=False, indent=1))
    else:
        print_comparison(comparison, console(stderr=False))
    log(f"the page: {page}")
