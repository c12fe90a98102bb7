"""The commands export and import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Model, OptionalReference


def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="Output folder; must not exist.")],
    format_: Annotated[
        str, typer.Option("--format", help="Format: ctranslate2, huggingface, marian or onnx.")
    ] = "ctranslate2",
    quantization: Annotated[str, typer.Option(help="Weights: float32, or (ctranslate2, onnx) int8.")] = "float32",
    check: Annotated[Path | None, typer.Option(help="Text to compare on; default: data of the model.")] = None,
    reference: OptionalReference = None,
) -> None:
    """Export a model to another program and verify its results.

    Both models are run on at most 200 lines of text. Nothing is written unless their results agree (parity).
    """
    from dragoman.formats.export import export as export_model

    typer.echo("\n".join(export_model(model, out, format_, quantization, check, reference).lines()))


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="Checkpoint: folder of Hugging Face, CTranslate2 or eole; folder or file of Marian, JoeyNMT, fairseq "
            "or OpenNMT-py; or NAMESPACE/NAME on the Hugging Face Hub."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Output: model folder; must not exist.")],
    check: Annotated[Path | None, typer.Option(help="Source text to compare on; default: random tokens.")] = None,
    reference: OptionalReference = None,
) -> None:
    """Import a public checkpoint (MarianMT, T5, GPT-2, Llama, BERT, ViT, Marian, CTranslate2 ...); verify its results.

    Both models are run on at most 200 lines of text. Nothing is written unless their results agree (parity).
    """
    from dragoman.formats.importing.importer import import_model

    typer.echo("\n".join(import_model(source, out, check, reference).lines()))
