"""Commands around training: demo, doctor, train, average, info."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.options import AsJson, Model, Out, app

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.io.run_log import Reporter

__all__ = ["average", "demo", "doctor", "info", "train"]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the run and the report go.")] = Path("demo"),
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value, as for train.")] = None,
) -> None:
    """Train on the built-in corpus of spelled numbers, translate, write report.html."""
    from dragoman.cli.demo import run_demo
    from dragoman.cli.progress import RichReporter, console

    if run_demo(out, overrides=set_ or [], reporter=RichReporter(), console=console()) is None:
        raise typer.Exit(130)


@app.command()
def doctor(
    config_or_source: Annotated[Path, typer.Argument(help="CONFIG.toml, or the source side of two text files.")],
    target: Annotated[Path | None, typer.Argument(help="The target side, when a source was given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Inspect data before a second is spent on training."""
    from dragoman.cli.progress import console
    from dragoman.data.doctor.examine import print_diagnosis
    from dragoman.training.forecast import diagnose

    diagnosis = diagnose(config_or_source, target)
    if as_json:
        typer.echo(json.dumps(diagnosis.to_json(), ensure_ascii=False, indent=1))
    else:
        print_diagnosis(diagnosis, console(stderr=False))
    if not diagnosis.healthy:
        raise typer.Exit(1)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="CONFIG.toml; the folder recipes/ has complete ones.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, such as train.seed=2")] = None,
    out: Out = None,
) -> None:
    """Train a model, or go on where the run in --out stopped."""
    from dragoman.cli.progress import RichReporter
    from dragoman.config import load_config
    from dragoman.training.trainer import train as train_run

    document = load_config(config, overrides or [])
    run = out or Path("runs") / config.stem
    reporter = RichReporter()
    result = train_run(document, run, reporter=reporter)
    if result.interrupted:
        reporter.log(f"stopped and saved at step {result.progress.step:,}; go on with: {_command_line()}")
        raise typer.Exit(130)
    reporter.log(f"done: {run} (step {result.progress.step:,}, {result.progress.seconds / 60:.1f} min)")
    _say_test_score(document, run, reporter)


def _command_line() -> str:
    import shlex

    return shlex.join(["dragoman", *sys.argv[1:]])


def _say_test_score(document: Config, run: Path, reporter: Reporter) -> None:
    """The scores on the test set, where the configuration names one."""
    if document.data.kind != "parallel" or document.data.test is None:
        return
    from dragoman.data.corpus import corpus_spec, read_pairs
    from dragoman.device import resolve_device
    from dragoman.evaluation.metrics import evaluate_model
    from dragoman.pipelines.translation import Translator

    pairs = list(read_pairs(corpus_spec(document, document.data.test)))
    language = document.data.target_language
    device = str(resolve_device(document.train.device))
    evaluation = evaluate_model(
        Translator.load(run, device, quantize="none"),
        [p.source for p in pairs],
        [[p.target for p in pairs]],
        language=language,
    )
    for line in evaluation.lines():
        reporter.log(f"test: {line}")


@app.command()
def average(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    last: Annotated[int, typer.Option(help="How many of the last checkpoints.")] = 5,
) -> None:
    """Average the last checkpoints of a run into one model: RUN/checkpoints/average."""
    from dragoman.models.model_folder import USED_BY, read_config
    from dragoman.training.run import average_run

    folder = average_run(run, last)
    used_by = USED_BY[read_config(folder).data.kind]
    typer.echo(folder)
    typer.echo(f"the mean of the last {last} checkpoints; it is used by: {used_by}", err=True)


@app.command()
def info(model: Model, as_json: AsJson = False) -> None:
    """What a model folder holds; every file checked against its sha256."""
    from dragoman.cli.describe import describe, print_description

    description = describe(model)
    if as_json:
        typer.echo(json.dumps(description, ensure_ascii=False, indent=1))
    else:
        from dragoman.cli.progress import console

        print_description(description, console(stderr=False))
