"""`dragoman doctor`: the diagnosis of a configuration or of two files, and a measured forecast of training."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config, load_config
from dragoman.data.corpus import CorpusSpec, corpus_spec
from dragoman.data.doctor.diagnosis import Diagnosis
from dragoman.data.doctor.examine import examine
from dragoman.data.doctor.precheck import replaced_characters
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DataError, DragomanError, UsageError
from dragoman.io.lines import plain_suffix
from dragoman.io.run_log import Reporter
from dragoman.training.allocator import keep_freed_memory
from dragoman.training.distributed import DistributedContext
from dragoman.training.run import TrainingRun, check_files, open_run
from dragoman.training.trainer import Trainer

__all__ = ["diagnose", "forecast"]

_WARM_UP_STEPS, _SECONDS = 3, 4.0


def diagnose(config_or_source: Path, target: Path | None = None) -> Diagnosis:
    """Examine two text files, a `.tsv` file, or the corpora of a configuration; without errors, time a few steps.

    Raises ConfigError, and UsageError for files that do not exist and for a single text file.
    """
    if target is not None:
        missing = [str(path) for path in (config_or_source, target) if not path.is_file()]
        if missing:
            raise UsageError(f"no such file: {', '.join(missing)}")
        spec = CorpusSpec(config_or_source, target)
        return examine([spec], valid=None, test=None, source_language=None, target_language=None)
    if plain_suffix(config_or_source) == ".tsv":
        if not config_or_source.is_file():
            raise UsageError(f"no such file: {config_or_source}")
        spec = CorpusSpec(path=config_or_source)
        return examine([spec], valid=None, test=None, source_language=None, target_language=None)
    if config_or_source.suffix != ".toml":
        raise UsageError(
            f"{config_or_source}: not a configuration; use a .toml file, two files: dragoman doctor SOURCE TARGET, or "
            "a .tsv file with two columns"
        )
    config = load_config(config_or_source)
    check_files(config)
    with tempfile.TemporaryDirectory() as scratch:
        return _diagnose(config, str(config_or_source), Path(scratch))


def _diagnose(config: Config, where: str, scratch: Path) -> Diagnosis:
    problem, run = "", None
    counts: list[str] = []
    try:
        without_validation = config.data.model_copy(update={"valid": None})
        run = open_run(config.model_copy(update={"data": without_validation}), scratch / "run", counts.append)
    except DragomanError as error:  # the findings of the examination are more precise
        problem = str(error)
    if config.data.kind == "parallel":
        diagnosis = _examined(config, run)
    else:
        diagnosis = Diagnosis(account=" ".join(line.removeprefix("data: ") for line in counts))
    if run is not None and diagnosis.healthy:
        diagnosis.add("info", *forecast(run, where))
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


def forecast(run: TrainingRun, where: str) -> tuple[str, str, str]:
    """Measure a few training steps; return the estimated cost of training, `where`, and how it was measured."""
    keep_freed_memory()
    train = run.config.train
    context = DistributedContext(train.device)
    run.check_memory(context.device)
    trainer = Trainer(run, context, Reporter())
    plan = run.task.epoch(0)
    try:
        rate, measured = _tokens_per_second(trainer, plan)
    finally:
        trainer.log.close()
    epoch = run.task.tokens() / rate  # seconds
    steps = len(plan) / train.accumulate
    budget = train.budget
    seconds = {
        "seconds": budget.amount,
        "epochs": budget.amount * epoch,
        "steps": budget.amount / steps * epoch,
        "tokens": budget.amount / rate,
    }[budget.unit]
    memory = context.peak_memory() / 1e9
    estimate = (
        f"training for {budget} takes about {_duration(seconds)} and {seconds / epoch * steps:,.0f} steps here: "
        f"{seconds / epoch:.1f} epochs of {steps:,.0f} steps, {rate:,.0f} tokens/s, {memory:.1f} GB of memory, "
        f"{trainer.model.parameter_count():,} parameters"
    )
    return estimate, where, f"measured over {measured} steps, without validation and saving"


def _tokens_per_second(trainer: Trainer, plan: list[NDArray[np.int64]]) -> tuple[float, int]:
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
        if seconds > _SECONDS:
            break
    return tokens / seconds, i + 1


def _duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 90 else f"{seconds:,.0f} s"
