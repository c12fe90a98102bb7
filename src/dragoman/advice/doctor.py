"""`dragoman doctor`: the diagnosis of a configuration or of two files, and a measured forecast of training."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dragoman.advice.diagnosis import Diagnosis
from dragoman.advice.examine import examine
from dragoman.advice.measurement import busy_machine, time_steps
from dragoman.config import Config, load_config
from dragoman.data.corpus import CorpusSpec, corpus_spec
from dragoman.data.precheck import replaced_characters
from dragoman.data.readers.tables import ACCEPTED, TMX, ZIP, key_languages, table_format, text_keys
from dragoman.data.readers.tmx import tmx_languages
from dragoman.errors import DataError, DragomanError, UsageError
from dragoman.io.run_log import Messages
from dragoman.tokenizers import Tokenizer
from dragoman.training.forecast import Forecast, forecast_problems, plan_warnings
from dragoman.training.run import TrainingRun, check_files, open_run


def diagnose(config_or_source: Path, target: Path | None = None, overrides: Sequence[str] = ()) -> Diagnosis:
    """Examine two text files, one file or folder, or the corpora of a configuration; without errors, time a few steps.

    overrides: `key=value` settings of the configuration.  Raises ConfigError, UsageError for files that do not exist,
    for a single text file and for overrides of text files, DataError for a file without two columns of text.
    """
    if target is not None:
        if overrides:
            raise UsageError(f"{overrides[0]}: overrides need a configuration: dragoman doctor CONFIG.toml key=value")
        missing = [str(path) for path in (config_or_source, target) if not path.is_file()]
        if missing:
            raise UsageError(f"no such file: {', '.join(missing)}")
    if target is not None or config_or_source.suffix != ".toml":
        spec = _single(config_or_source) if target is None else CorpusSpec(config_or_source, target)
        languages = key_languages((spec.source_key, spec.target_key))
        return examine([spec], valid=None, test=None, source_language=languages[0], target_language=languages[1])
    config = load_config(config_or_source, overrides)
    check_files(config)
    with tempfile.TemporaryDirectory() as scratch:
        return _diagnose(config, str(config_or_source), Path(scratch))


def _single(path: Path) -> CorpusSpec:
    """Return the corpus in one file or folder; columns are chosen by their content, except those of a TSV."""
    try:
        form = table_format(path)
    except UsageError:
        raise UsageError(
            f"{path}: not a configuration; use a .toml file, two files: dragoman doctor SOURCE TARGET, or one "
            f"{ACCEPTED}"
        ) from None
    if not path.exists():
        raise UsageError(f"no such file: {path}")
    if form in (ZIP, ".tsv"):
        return CorpusSpec(path=path)
    source_key, target_key = tmx_languages(path) if form == TMX else text_keys(path, lambda _: None)
    return CorpusSpec(path=path, source_key=source_key, target_key=target_key)


def _diagnose(config: Config, where: str, scratch: Path) -> Diagnosis:
    problem, run = "", None
    messages = Messages()
    try:
        without_validation = config.data.model_copy(update={"valid": None})
        run = open_run(config.model_copy(update={"data": without_validation}), scratch / "run", messages)
    except DragomanError as error:  # the findings of the examination are more precise
        problem = str(error)
    if config.data.about.translates:
        diagnosis = _examined(config, run)
    else:
        diagnosis = Diagnosis(account=" ".join(text.removeprefix("data: ") for text in messages.texts))
    if run is not None and diagnosis.healthy:
        forecast(run, where, diagnosis)
    elif problem and diagnosis.healthy:
        diagnosis.add("error", problem, where, "correct this before training")
    return diagnosis


def _examined(config: Config, run: TrainingRun | None) -> Diagnosis:
    """Examine the pairs of a configuration; with a run, count their tokens too."""
    data, vocabulary = config.parallel, None if run is None else run.task.vocabulary
    tokenizer = vocabulary if isinstance(vocabulary, Tokenizer) else None
    diagnosis = examine(
        [corpus_spec(config, c) for c in data.train],
        valid=None if data.valid is None else corpus_spec(config, data.valid),
        test=None if data.test is None else corpus_spec(config, data.test),
        source_language=data.source_language,
        target_language=data.target_language,
        encode=None if tokenizer is None else (tokenizer.encode_source, tokenizer.encode_target),
        rules=data.filter,
    )
    with suppress(DataError):  # the examination reports files that cannot be read
        for key, what, advice in replaced_characters(config):
            diagnosis.add("warning", what, key, advice)
    return diagnosis


def forecast(run: TrainingRun, where: str, diagnosis: Diagnosis) -> None:
    """Measure a few training steps; add the estimated cost of training, and warnings about an insufficient plan."""
    timing, train = time_steps(run), run.config.train
    batches, tokens = timing.batches, run.task.tokens()
    steps = batches / train.accumulate
    epoch = tokens / timing.tokens_per_second  # seconds
    budget = train.budget
    seconds = {
        "seconds": budget.amount,
        "epochs": budget.amount * epoch,
        "steps": budget.amount / steps * epoch,
        "tokens": budget.amount / timing.tokens_per_second,
    }[budget.unit]
    expected = Forecast(seconds / epoch, seconds / epoch * steps, tokens, timing.parameters)
    estimate = (
        f"training for {budget} takes about {_duration(seconds)} and {expected.steps:,.0f} steps on this machine: "
        f"{expected.epochs:.1f} epochs of {steps:,.0f} steps, {timing.tokens_per_second:,.0f} tokens/s, "
        f"{timing.memory / 1e9:.1f} GB of memory, {timing.parameters:,} parameters"
    )
    diagnosis.add("info", estimate, where, f"measured over {timing.steps} steps, without validation and saving")
    if problem := busy_machine(timing.cores):
        advice = "training is faster on an idle machine: stop other programs and run this command again"
        diagnosis.add("warning", problem, where, advice)
    for what, advice in forecast_problems(run.config, expected, run.parameters_of):
        diagnosis.add("warning", what, where, advice)
    if budget.unit != "seconds":
        for warning in plan_warnings(train, run.task, batches):
            what, _, advice = warning.partition("; ")
            diagnosis.add("warning", what, where, advice)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 90 else f"{seconds:,.0f} s"
