"""`dragoman doctor`: the diagnosis of a configuration or of two files, and a measured forecast of training."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.config import Config, load_config
from dragoman.data.corpus import CorpusSpec, corpus_spec
from dragoman.data.doctor.diagnosis import Diagnosis
from dragoman.data.doctor.examine import examine
from dragoman.data.doctor.precheck import replaced_characters
from dragoman.data.readers.columns import key_languages, text_keys
from dragoman.data.readers.tables import ACCEPTED, TMX, ZIP, table_format
from dragoman.data.readers.tmx import tmx_languages
from dragoman.errors import DataError, DragomanError, UsageError
from dragoman.io.run_log import Messages, Reporter
from dragoman.tokenizers import Tokenizer
from dragoman.training.allocator import keep_freed_memory
from dragoman.training.distributed import DistributedContext
from dragoman.training.plan import Forecast, forecast_problems, plan_warnings
from dragoman.training.run import TrainingRun, check_files, open_run
from dragoman.training.trainer import Trainer

__all__ = ["StepTiming", "busy_machine", "diagnose", "forecast", "time_steps"]

_WARM_UP_STEPS, _SECONDS = 3, 4.0
_BUSY = 0.7  # cores


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
        return _examine_text(CorpusSpec(config_or_source, target))
    if config_or_source.suffix != ".toml":
        return _examine_text(_single(config_or_source))
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


def _examine_text(spec: CorpusSpec) -> Diagnosis:
    source, target = key_languages((spec.source_key, spec.target_key))
    return examine([spec], valid=None, test=None, source_language=source, target_language=target)


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


@dataclass(frozen=True)
class StepTiming:
    """Measured training steps: source + target tokens per second, number of steps, bytes of memory, parameters.

    cores: processor time per second, on average.  batches: per epoch.
    """

    tokens_per_second: float
    steps: int
    memory: float
    parameters: int
    cores: float
    batches: int


def time_steps(run: TrainingRun, seconds: float = _SECONDS) -> StepTiming:
    """Train for a few steps, without validation and saving, and return the speed.

    Raises UsageError if the memory does not suffice for training.
    """
    keep_freed_memory()
    context = DistributedContext(run.config.train.device)
    run.check_memory(context.device)
    trainer = Trainer(run, context, Reporter())
    try:
        trainer.threads.start(trainer.trial, resumed=False)
        clock, processor = time.monotonic(), time.process_time()
        rate, steps = _tokens_per_second(trainer, run.task.block(0, 0), seconds)
        cores = (time.process_time() - processor) / (time.monotonic() - clock)
    finally:
        trainer.close()
    batches = trainer.batches.batches_per_epoch(trainer.progress)
    return StepTiming(rate, steps, context.peak_memory(), trainer.model.parameter_count(), cores, batches)


def busy_machine(cores: float) -> str | None:
    """Return a warning if other programs slowed down a measurement on the CPU; otherwise None."""
    if torch.cuda.is_available() or cores >= _BUSY:
        return None
    return f"the machine is busy: training got {cores:.0%} of a core while its speed was measured"


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


def _tokens_per_second(trainer: Trainer, plan: list[NDArray[np.int64]], limit: float = _SECONDS) -> tuple[float, int]:
    """Return source + target tokens per second of training steps, and the number of steps."""
    group = trainer.config.accumulate
    count = max(1, len(plan) // group)
    tokens, seconds = 0, 0.0
    trainer.model.train()
    warm_up = min(_WARM_UP_STEPS, count - 1)  # the first steps are slower: they allocate memory and fill caches
    for i in range(count):
        batches = [trainer.read(indices, j) for j, indices in enumerate(plan[i * group : (i + 1) * group])]
        start = time.monotonic()
        trainer.step(batches)
        if i >= warm_up:
            seconds += time.monotonic() - start
            tokens += sum(b.src_tokens + b.tgt_tokens for b in batches)
        if seconds > limit:
            break
    return tokens / seconds, i + 1


def _duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 90 else f"{seconds:,.0f} s"
