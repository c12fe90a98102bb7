"""The command `playground`: a Transformer that runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Page, PageLanguage
from dragoman.cli.streams import log


def playground(
    model: Annotated[
        Path | None, typer.Argument(help="Run or model folder of a Transformer, beside the tiny model of the page.")
    ] = None,
    out: Page = Path("playground.html"),
    lang: PageLanguage = "auto",
) -> None:
    """Write a page in which a Transformer runs, to be changed and trained.

    Without MODEL, the page has the tiny model of `dragoman walkthrough`. A trained one, such as demo/run, is
    stored in 8-bit integers; the page needs no server.
    """
    from dragoman.interpret.playground import write_playground

    log(f"page: {write_playground(out, model, lang)}")
