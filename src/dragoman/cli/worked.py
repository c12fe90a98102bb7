"""The commands `gallery` and `walkthrough`: numbers that can be calculated by hand."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli.options import Page, PageLanguage
from dragoman.cli.streams import log
from dragoman.errors import DataError


def gallery(out: Page = Path("gallery.html"), lang: PageLanguage = "auto") -> None:
    """Write a page of examples worked out by hand, each number beside the computed one."""
    from dragoman.interpret.walkthrough.gallery import write_gallery

    log(f"page: {write_gallery(out, lang)}")


def walkthrough(
    matrices: Annotated[
        Path | None,
        typer.Argument(
            help="TOML file with matrices and biases that replace those of the model, such as "
            '"encoder.layers.0.self_attn.q_bias" = [0, 0, 0, 1]; --print lists all of them in this form.'
        ),
    ] = None,
    worked: Annotated[
        bool, typer.Option("--worked", help="Start from the matrices of the training step in the gallery.")
    ] = False,
    print_: Annotated[
        bool, typer.Option("--print", help="Print all matrices as TOML, to edit and read again; write no page.")
    ] = False,
    heads: Annotated[int, typer.Option(help="Attention heads: 1, 2 or 4.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of the update.")] = 0.01,
    out: Page = Path("walkthrough.html"),
    lang: PageLanguage = "auto",
) -> None:
    """Write a page with one training step of a tiny Transformer, "I am" to "我 是".

    It has 2 + 2 layers of width 4; every number of the forward pass, the backward pass and the update is shown. Its
    matrices are multiples of 0.5; those of --worked give the numbers of a text on this pair, see `dragoman gallery`.
    """
    from dragoman.interpret.walkthrough.gallery import write_walkthrough
    from dragoman.interpret.walkthrough.tiny_preset import WORKED_MATRICES, matrices_toml, tiny_walkthrough

    replaced = _read(matrices)
    values = {**(WORKED_MATRICES if worked else {}), **replaced}
    if print_:
        typer.echo(matrices_toml(values))
        return
    step = tiny_walkthrough(values, heads=heads, learning_rate=learning_rate)
    page = write_walkthrough(out, step, lang, worked=worked, replaced=[*replaced], heads=heads)
    typer.echo(f"loss {step['loss']:.6g} -> {step['loss_after']:.6g} after one update")
    log(f"page: {page}")


def _read(path: Path | None) -> dict[str, Any]:
    """Return the matrices of a file by name; `encoder.layers.0.self_attn.q` may also be nested tables."""
    if path is None:
        return {}
    try:
        return dict(_flat(tomllib.loads(path.read_text(encoding="utf-8"))))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise DataError(f"{path} is not TOML: {error}; accepted: name = [[1, 0], [0, 1]]") from error


def _flat(table: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        found += _flat(value, f"{path}{key}.") if isinstance(value, dict) else [(f"{path}{key}", value)]
    return found
