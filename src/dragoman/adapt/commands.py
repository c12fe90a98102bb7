"""The commands that adapt a model to a corpus: adapt and prune."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dragoman.advice.commands import Budget, Clean, Languages, Out, Source, Target, Test, Valid
from dragoman.cli.options import Model, SourceLanguage, TargetLanguage
from dragoman.cli.streams import log

Layers = Annotated[int | None, typer.Option(help="Number of layers that are kept; default: all.")]
FeedForward = Annotated[int | None, typer.Option(help="Number of neurons kept in feed-forward networks; default: all.")]
MinCount = Annotated[int, typer.Option(help="Keep the pieces that occur at least this many times.")]
Script = Annotated[list[str] | None, typer.Option(help="Also keep all pieces of a script: Latin, Han, ...")]
AddLanguage = Annotated[str | None, typer.Option(help="A code for a language that the model does not know.")]
Like = Annotated[str | None, typer.Option(help="Code of the related language that the new one starts as.")]


def adapt(
    model: Annotated[Path, typer.Argument(help="Run, model folder, or checkpoint that 'dragoman import' accepts.")],
    source: Source,
    target: Target = None,
    general: Annotated[
        Path | None, typer.Option(help="General text in the source language, which MODEL translates, to forget less.")
    ] = None,
    budget: Budget = "20 min",
    out: Out = None,
    languages: Languages = None,
    valid: Valid = None,
    test: Test = None,
    clean: Clean = False,
    min_count: MinCount = 1,
    script: Script = None,
    encoder_layers: Layers = None,
    decoder_layers: Layers = None,
    d_ff: FeedForward = None,
    add_language: AddLanguage = None,
    like: Like = None,
) -> None:
    """Write a document that makes a model smaller and fine-tunes it on your own text, for this machine and a time.

    A checkpoint is imported first. The stages, their sizes and their cost are printed; 'dragoman train' runs them.
    """
    from dragoman.adapt.adaptation import Adapted, checked
    from dragoman.adapt.pruning import Pruning
    from dragoman.advice.new import plan_training
    from dragoman.cli.console import console, plain_table, print_table

    how = min_count, script or (), encoder_layers, decoder_layers, d_ff, languages or (None, None), add_language, like
    initial = checked(Pruning(model, [source], [target] if target else [], valid, *how), general)
    plan = plan_training(
        source, target, budget=budget, languages=languages, valid=valid, test=test, out=out, clean=clean,
        from_=initial, log=log,
    )  # fmt: skip
    table = plain_table("stage", "what", "million weights", "MB", "min", "GB of memory", left=("what",))
    assert isinstance(plan.initial, Adapted)
    for row in plan.initial.rows(plan):
        table.add_row(*row)
    print_table(console(), table)
    typer.echo(f"dragoman train {shlex.quote(str(plan.path))}")


def prune(
    model: Model,
    out: Annotated[Path, typer.Argument(help="Output: model folder; must not exist.")],
    source: Annotated[list[Path] | None, typer.Option(help="Source text of the corpus; can be repeated.")] = None,
    target: Annotated[list[Path] | None, typer.Option(help="Target text of the corpus; can be repeated.")] = None,
    valid: Annotated[tuple[Path, Path] | None, typer.Option(help="Validation text: source and target.")] = None,
    min_count: MinCount = 1,
    script: Script = None,
    encoder_layers: Layers = None,
    decoder_layers: Layers = None,
    d_ff: FeedForward = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    add_language: AddLanguage = None,
    like: Like = None,
) -> None:
    """Make a model smaller: keep the pieces that a corpus needs, the layers and neurons that matter; add a language.

    Texts whose pieces are all kept are translated as before. Layers and neurons are compared on the validation text.
    """
    from dragoman.adapt.pruning import Pruning, prune_model

    sizes, languages = (encoder_layers, decoder_layers, d_ff), (source_language, target_language)
    kept = source or (), target or (), valid, min_count, script or ()
    pruning = Pruning(model, *kept, *sizes, languages, add_language, like)
    typer.echo("\n".join(prune_model(pruning, out, log).lines()))
