"""The application, and the options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AsJson",
    "Device",
    "InputFile",
    "Model",
    "Models",
    "Out",
    "OutputFile",
    "Quantize",
    "Source",
    "Tokenize",
    "app",
]

app = typer.Typer(
    help="Train, run and open up the Transformer of 'Attention Is All You Need'.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Model = Annotated[Path, typer.Argument(help="A run folder, one checkpoint in it, or a model folder.")]
Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL...",
        help="A run folder, one checkpoint in it, or a model folder; several models translate as an ensemble.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="The run folder; default: runs/<name of the configuration>.")]
InputFile = Annotated[Path | None, typer.Option("--input", help="Text, one sentence a line; default: standard input.")]
OutputFile = Annotated[Path | None, typer.Option("--output", help="Where to write; default: standard output.")]
Source = Annotated[Path, typer.Option(help="Source text, one sentence a line.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")]
Quantize = Annotated[str, typer.Option(help="The native engine's weights: int8 (auto), bf16, or none = float32.")]
Tokenize = Annotated[
    str,
    typer.Option(help="BLEU's tokenizer: auto (by target language), 13a, intl, zh, ja-mecab, ko-mecab, char or none."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for a machine to read.")]


def _version(asked: bool) -> None:
    if asked:
        from dragoman._version import __version__

        typer.echo(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, run and open up the Transformer of 'Attention Is All You Need'."""
