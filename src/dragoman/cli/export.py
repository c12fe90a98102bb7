"""The command `export`: a model for another program, with a report that both say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Model, app

__all__ = ["export"]


@app.command()
def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist yet.")],
    format_: Annotated[str, typer.Option("--format", help="ctranslate2.")] = "ctranslate2",
    quantization: Annotated[str, typer.Option(help="float32, or int8 with a scale for each output.")] = "float32",
    check: Annotated[
        Path | None, typer.Option(help="Text to compare on, the first 200 lines; default: the model's own.")
    ] = None,
) -> None:
    """Write a model for another program, and show that it says the same there; without that nothing is written."""
    from dragoman.formats.export import export_model

    for line in export_model(model, out, format_, quantization, check).lines():
        typer.echo(line)
