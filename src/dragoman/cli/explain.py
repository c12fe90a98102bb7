"""The command `explain`: one input through every step of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Beam, Device, Model, Page, PageLanguage
from dragoman.cli.streams import log


def explain(
    model: Model,
    source: Annotated[
        str, typer.Argument(help="Sentence, prompt, or words to tag; or the number or .npy or .npz file of an image.")
    ],
    target: Annotated[
        str | None, typer.Option(help="Output to explain, without search; default: the output of the model.")
    ] = None,
    out: Page = Path("explain.html"),
    beam: Beam = None,
    lang: PageLanguage = "auto",
    device: Device = "cpu",
) -> None:
    """Write a page with every step of the model on one input."""
    from dragoman.device import resolve_device
    from dragoman.interpret.explain.explain import explain as explain_input
    from dragoman.interpret.explain.explain import write_explanation
    from dragoman.pages.page import check_language

    check_language(lang)
    explanation = explain_input(model, source, target, beam=beam, device=resolve_device(device))
    page = write_explanation(out, explanation, lang)
    typer.echo(explanation.text)
    if "sentences" in explanation.flags:
        log(
            "the text has several sentences; it is explained without splitting, as with 'dragoman translate --no-split'"
        )
    log(f"page: {page}")
