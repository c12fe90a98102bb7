"""The commands that advise before training: new and doctor."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import AsJson
from dragoman.cli.streams import log, print_result, show_progress

Languages = Annotated[
    tuple[str, str] | None,
    typer.Option(help="Codes of the source and target language, such as en fr or en,fr; default: detected."),
]
Source = Annotated[
    Path, typer.Argument(help="Source text, one sentence per line; or one file or folder with both sides.")
]
Target = Annotated[Path | None, typer.Argument(help="Translations of SOURCE, one per line.")]
Budget = Annotated[str, typer.Option(help="Training time, at least 30 s, such as 20min, or '20 min' in quotes.")]
Out = Annotated[
    Path | None, typer.Option(help="Output: CONFIG.toml; default: <source>-<target>.toml, such as en-fr.toml.")
]
Valid = Annotated[
    tuple[Path, Path] | None, typer.Option(help="Validation text; default: drawn from SOURCE and TARGET.")
]
Test = Annotated[tuple[Path, Path] | None, typer.Option(help="Test text; default: drawn from SOURCE and TARGET.")]
Clean = Annotated[bool, typer.Option("--clean", help="Leave out the pairs that 'dragoman clean' rejects.")]


def new(
    source: Source,
    target: Target = None,
    budget: Budget = "20 min",
    out: Out = None,
    languages: Languages = None,
    valid: Valid = None,
    test: Test = None,
    clean: Clean = False,
    monolingual: Annotated[
        Path | None, typer.Option(help="Text in the target language, one sentence per line, which is translated back.")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Model or run to fine-tune; default: a new model.")
    ] = None,
) -> None:
    """Write a configuration for your own text, this machine and a training time.

    The text is split into training, validation and test files; comments in the configuration explain each setting.
    """
    from dragoman.advice.new import plan_training

    plan = plan_training(
        source, target, budget=budget, languages=languages, valid=valid, test=test, out=out, clean=clean,
        monolingual=monolingual, from_=from_, log=log,
    )  # fmt: skip
    typer.echo(f"dragoman train {shlex.quote(str(plan.path))}")


def doctor(
    config_or_source: Annotated[
        Path, typer.Argument(help="CONFIG.toml, the source side of two text files, or one file or folder with both.")
    ],
    target_or_overrides: Annotated[
        list[str] | None, typer.Argument(help="Target side of two text files; or overrides of CONFIG.toml, key=value.")
    ] = None,
    languages: Languages = None,
    as_json: AsJson = False,
) -> None:
    """Check data and settings for problems before training.

    The exit code is 1 if there is a problem.
    """
    from dragoman.advice.diagnosis import print_diagnosis
    from dragoman.advice.doctor import diagnose

    rest = target_or_overrides or []
    if config_or_source.suffix == ".toml":
        diagnosis = diagnose(config_or_source, overrides=rest, languages=languages)
    else:
        diagnosis = diagnose(config_or_source, Path(rest[0]) if rest else None, rest[1:], languages)
    print_result(diagnosis, as_json, print_diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def clean(
    source: Source,
    target: Target = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder for the result; default: <source>-clean, such as train-clean.")
    ] = None,
    languages: Languages = None,
    allow: Annotated[
        str, typer.Option(help="Reasons for which no pair is rejected, separated by commas, such as markup,language.")
    ] = "",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    as_json: AsJson = False,
) -> None:
    """Remove the pairs of a parallel text that harm training, and write them to a file with the reasons.

    Pairs are rejected for damaged characters, markup, HTML entities, wrong languages, unusual lengths, shifted or
    unrelated stretches, repetition, and as near-duplicates.  An interrupted command continues when it is run again.
    """
    from dragoman.advice.clean import clean_corpus, print_report

    out = out or Path(f"{source.name.partition('.')[0] or source.name}-clean")
    report = clean_corpus(
        source, target, out=out, languages=languages,
        allow=[reason.strip() for reason in allow.split(",") if reason.strip()], workers=workers, log=log,
        progress=lambda pairs: show_progress(pairs, "segments"),
    )  # fmt: skip
    print_result(report, as_json, print_report)
