"""The command `compare`: several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import AsJson, Device, OptionalReference, OptionalSource, Page, PageLanguage, Tokenize
from dragoman.cli.streams import log, print_result


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    out: Page = Path("compare.html"),
    source: OptionalSource = None,
    reference: OptionalReference = None,
    tokenize: Tokenize = "auto",
    lang: PageLanguage = "auto",
    as_json: AsJson = False,
    device: Device = "cpu",
) -> None:
    """Compare the configuration, curves, cost and scores of runs.

    With --source and --reference, the text is translated with every run and scored.
    """
    from dragoman.device import resolve_device
    from dragoman.evaluation.compare import compare_runs
    from dragoman.evaluation.compare.page import print_comparison, write_comparison
    from dragoman.pages.page import check_language

    check_language(lang)
    comparison = compare_runs(runs, source, reference, device=resolve_device(device), tokenize=tokenize, log=log)
    page = write_comparison(out, comparison, lang)
    print_result(comparison, as_json, print_comparison)
    log(f"page: {page}")
