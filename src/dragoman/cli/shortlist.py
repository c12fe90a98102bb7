"""The command `shortlist`: which target words go with which source words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Model, app

__all__ = ["shortlist"]


@app.command()
def shortlist(
    model: Model,
    source: Annotated[
        Path | None, typer.Option(help="Source text, one sentence a line; default: the training's.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Its translations, one a line.")] = None,
    best: Annotated[int, typer.Option(help="Target words that a source word brings along.")] = 50,
    frequent: Annotated[int, typer.Option(help="Target words that every sentence may use.")] = 100,
) -> None:
    """Learn which words may translate which, for 'translate --shortlist': faster where the vocabulary is large."""
    from dragoman.training.shortlist import learn_shortlist

    learned = learn_shortlist(model, source, target, best, frequent, log=lambda text: typer.echo(text, err=True))
    for line in learned.lines():
        typer.echo(line)
