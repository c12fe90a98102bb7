"""`dragoman doctor`: the diagnosis of a configuration or of two files, and what training would take, measured."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config, load_config
from dragoman.data.corpus import CorpusSpec, corpus_spec
from dragoman.data.doctor.diagnosis import Diagnosis
from dragoman.data.doctor.examine import examine
from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DragomanError, UsageError
from dragoman.io.run_log import Reporter
from dragoman.training.allocator import keep_freed_memory
from dragoman.training.distributed import DistributedContext
from dragoman.training.run import TrainingRun, check_files, open_run
from dragoman.training.trainer import Trainer

__all__ = ["diagnose", "forecast"]

_WARM, _SECONDS = 3, 4.0


def diagnose(config_or_source: Path, target: Path | None = None) -> Diagnosis:
    """Examine the corpora of a configuration, or two text files; a healthy configuration is tried for a few steps.

    Raises `ConfigError`, or `UsageError` for one text file alone.
    """
    if target is not None:
        missing = [str(path) for path in (config_or_source, target) if not path.is_file()]
        if missing:
            raise UsageError(f"no such file: {', '.join(missing)}")
        spec = CorpusSpec(config_or_source, target)
        return examine([spec], valid=None, test=None, source_language=None, target_language=None)
    if config_or_source.suffix != ".toml":
        raise UsageError(
            f"{config_or_source}: give a configuration (.toml), or both sides: dragoman doctor SOURCE TARGET"
        )
    config = load_config(config_or_source)
    check_files(config)
    with tempfile.TemporaryDirectory() as scratch:
        return _diagnose(config, str(config_or_source), Path(scratch))


def _diagnose(config: Config, where: str, scratch: Path) -> Diagnosis:
    trouble, run = "", None
    account: list[str] = []
    try:
        run = open_run(_without_validation(config), scratch / "run", account.append)
    except DragomanError as error:  # examined all the same; the findings say more
        trouble = str(error)
    if config.data.kind == "parallel":
        diagnosis = _examined(config, run)
    else:
        diagnosis = Diagnosis(account=" ".join(line.removeprefix("data: ") for line in account))
    if run is not None and diagnosis.healthy:
        diagnosis.add("info", *forecast(run, where))
    elif trouble and diagnosis.healthy:
        diagnosis.add("error", trouble, where, "mend this before training")
    return diagnosis


def _examined(config: Config, run: TrainingRun | None) -> Diagnosis:
    """What is in the pairs of a configuration; with a run also in tokens."""
    data, vocabulary = config.parallel, None if run is None else run.task.vocabulary
    tokenizer = vocabulary if isinstance(vocabulary, Tokenizer) else None
    return examine(
        [corpus_spec(config, c) for c in data.train],
        valid=None if data.valid is None else corpus_spec(config, data.valid),
        test=None if data.test is None else corpus_spec(config, data.test),
        source_language=data.source_language,
        target_language=data.target_language,
        encode=None if tokenizer is None else (tokenizer.encode_source, tokenizer.encode_target),
        rules=data.filter,
    )


def _without_validation(config: Config) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update={"valid": None})})


def forecast(run: TrainingRun, where: str) -> tuple[str, str, str]:
    """What training would take, from a few real steps on this machine: a sentence, `where`, and how it was measured."""
    keep_freed_memory()
    train = run.config.train
    world = DistributedContext(train.device)
    run.check_memory(world.device)
    trainer = Trainer(run, world, Reporter())
    plan = run.task.epoch(0)
    try:
        rate, tried = _tokens_per_second(trainer, plan)
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
    memory = trainer.world.peak_memory() / 1e9
    what = (
        f"training for {budget} takes about {_spoken(seconds)} and {seconds / epoch * steps:,.0f} steps here: "
        f"{seconds / epoch:.1f} epochs of {steps:,.0f} steps, {rate:,.0f} tokens/s, {memory:.1f} GB of memory, "
        f"{trainer.model.parameter_count():,} parameters"
    )
    return what, where, f"measured over {tried} steps; validation and saving come on top"


def _tokens_per_second(trainer: Trainer, plan: list[NDArray[np.int64]]) -> tuple[float, int]:
    """Source + target tokens a second of real steps, and how many were made."""
    group = trainer.config.accumulate
    count = max(1, len(plan) // group)
    tokens, seconds = 0, 0.0
    trainer.model.train()
    warm = min(_WARM, count - 1)  # the first steps pay for memory and caches that the others find
    for i in range(count):
        batches = [trainer.read(numbers, j) for j, numbers in enumerate(plan[i * group : (i + 1) * group])]
        began = time.monotonic()
        trainer.step(batches)
        if i >= warm:
            seconds += time.monotonic() - began
            tokens += sum(b.src_tokens + b.tgt_tokens for b in batches)
        if seconds > _SECONDS:
            break
    return tokens / seconds, i + 1


def _spoken(seconds: float) -> str:
    return f"{seconds / 60:,.0f} min" if seconds >= 90 else f"{seconds:,.0f} s"
