"""The commands that advise before training: new and doctor."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import AsJson
from dragoman.cli.streams import log, print_result


def new(
    source: Annotated[
        Path, typer.Argument(help="Source text, one sentence per line; or one file or folder with both sides.")
    ],
    target: Annotated[Path | None, typer.Argument(help="Translations of SOURCE, one per line.")] = None,
    budget: Annotated[
        str, typer.Option(help="Training time, at least 30 s, such as 20min, or '20 min' in quotes.")
    ] = "20 min",
    out: Annotated[
        Path | None, typer.Option(help="Output: CONFIG.toml; default: <source>-<target>.toml, such as en-fr.toml.")
    ] = None,
    languages: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Codes of the source and target language; default: detected from the files."),
    ] = None,
    valid: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Validation text; default: drawn from SOURCE and TARGET.")
    ] = None,
    test: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Test text; default: drawn from SOURCE and TARGET.")
    ] = None,
) -> None:
    """Write a configuration for your own text, this machine and a training time.

    The text is split into training, validation and test files; comments in the configuration explain each setting.
    """
    from dragoman.advice.new import plan_training

    plan = plan_training(source, target, budget=budget, languages=languages, valid=valid, test=test, out=out, log=log)
    typer.echo(f"dragoman train {shlex.quote(str(plan.path))}")


def doctor(
    config_or_source: Annotated[
        Path, typer.Argument(help="CONFIG.toml, the source side of two text files, or one file or folder with both.")
    ],
    target_or_overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Target side of two text files; or overrides of CONFIG.toml, key=value."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check data and settings for problems before training.

    The exit code is 1 if there is a problem.
    """
    from dragoman.advice.diagnosis import print_diagnosis
    from dragoman.advice.doctor import diagnose

    rest = target_or_overrides or []
    if config_or_source.suffix == ".toml":
        diagnosis = diagnose(config_or_source, overrides=rest)
    else:
        diagnosis = diagnose(config_or_source, Path(rest[0]) if rest else None, rest[1:])
    print_result(diagnosis, as_json, print_diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)
