"""The commands export and import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Model, OptionalReference
from dragoman.errors import UsageError


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
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Of a language model that translates: the text before a translation, with {source} in it, and "
            "optionally {source_language} and {target_language}; \\n is a line break."
        ),
    ] = None,
    source_language: Annotated[str | None, typer.Option("--from", help="With --prompt: source language.")] = None,
    target_language: Annotated[str | None, typer.Option("--to", help="With --prompt: target language.")] = None,
    end: Annotated[
        str | None, typer.Option(help="Of a language model with several ends: the token that ends a text.")
    ] = None,
) -> None:
    """Import a public checkpoint (MarianMT, T5, GPT-2, Llama, BERT, ViT, Marian, CTranslate2 ...); verify its results.

    Both models are run on at most 200 lines of text. Nothing is written unless their results agree (parity).
    """
    from dragoman.formats.importing.importer import import_model

    given = {"source_language": source_language, "target_language": target_language}
    options = {key: code for key, code in given.items() if code is not None}
    if prompt is not None:
        options["template"] = prompt.replace("\\n", "\n")
    elif options:
        raise UsageError("--from and --to need --prompt: other models name their languages themselves; omit them")
    typer.echo("\n".join(import_model(source, out, check, reference, options or None, end).lines()))
