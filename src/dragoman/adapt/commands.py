"""The commands that adapt a model to a corpus: prune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Model, SourceLanguage, TargetLanguage
from dragoman.cli.streams import log

Layers = Annotated[int | None, typer.Option(help="Number of layers that are kept; default: all.")]


def prune(
    model: Model,
    out: Annotated[Path, typer.Argument(help="Output: model folder; must not exist.")],
    source: Annotated[list[Path] | None, typer.Option(help="Source text of the corpus; can be repeated.")] = None,
    target: Annotated[list[Path] | None, typer.Option(help="Target text of the corpus; can be repeated.")] = None,
    valid: Annotated[tuple[Path, Path] | None, typer.Option(help="Validation text: source and target.")] = None,
    min_count: Annotated[int, typer.Option(help="Keep the pieces that occur at least so often.")] = 1,
    script: Annotated[list[str] | None, typer.Option(help="Also keep all pieces of a script: Latin, Han, ...")] = None,
    encoder_layers: Layers = None,
    decoder_layers: Layers = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
) -> None:
    """Make a model smaller: keep the pieces that a corpus needs, drop the layers that matter least.

    Texts whose pieces are all kept are translated as before. Layers are compared by the loss of the validation text.
    """
    from dragoman.adapt.pruning import Pruning, prune_model

    languages = source_language, target_language
    pruning = Pruning(
        model, source or (), target or (), valid, min_count, script or (), encoder_layers, decoder_layers, languages
    )
    typer.echo("\n".join(prune_model(pruning, out, log).lines()))
