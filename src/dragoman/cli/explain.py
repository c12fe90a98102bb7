"""The command that opens a model up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Device, Model, app

__all__ = ["explain"]


@app.command()
def explain(
    model: Model,
    source: Annotated[
        str,
        typer.Argument(help="A sentence, the beginning of a text, words to tag, an image's number or .npy, .npz file."),
    ],
    target: Annotated[
        str | None, typer.Option(help="Explain this output in place of the model's own; nothing is searched then.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("explain.html"),
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept a step; 1 = greedy; default: the model's.")] = None,
    device: Device = "cpu",
) -> None:
    """Look inside: one input, every step of the model on it, as a page."""
    from dragoman.device import resolve_device
    from dragoman.interpret.explain.explain import explain as compute_explanation
    from dragoman.interpret.explain.explain import write_explanation

    explanation = compute_explanation(model, source, target, beam=beam, device=resolve_device(device))
    page = write_explanation(out, explanation)
    typer.echo(explanation.text)
    typer.echo(f"the page: {page}", err=True)
