"""Statistics of the training text, and the training speed of models on this machine."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.advice.choice import (
    SIZES,
    CorpusFacts,
    Setting,
    Size,
    Speed,
    choose_vocabulary,
    enough_tokens,
    model_settings,
    nested,
    optimizer_settings,
)
from dragoman.config import Config, parse_config
from dragoman.config.stages import TextConfig
from dragoman.errors import DataError, UsageError
from dragoman.io.run_log import Reporter
from dragoman.models.model_folder import save_model, unique_tensors
from dragoman.pipelines.translation import Translator
from dragoman.training.cpu import keep_freed_memory
from dragoman.training.distributed import DistributedContext
from dragoman.training.run import TrainingRun, open_run
from dragoman.training.tasks.translation import TranslationTask
from dragoman.training.trainer import Trainer

_COMMON = 0.8  # share of the target's letters that occur in the source
_SECONDS, _SECONDS_PER_SIZE = 4.0, 2.0
_WARM_UP_STEPS = 3
_BUSY = 0.7  # cores
_BATCH_TOKENS = 2048
_LINES = 100


def corpus_facts(sample: Sequence[tuple[str, str]], pairs: int, languages: tuple[str, str]) -> CorpusFacts:
    """Return the statistics of `pairs` training pairs, estimated from a sample of them.

    The number of distinct words of the whole text is extrapolated with the square root of its length (Heaps' law).
    """
    words: list[set[str]] = [set(), set()]
    letters: list[Counter[str]] = [Counter(), Counter()]
    characters: list[set[str]] = [set(), set()]
    for pair in sample:
        for side, text in enumerate(pair):
            words[side].update(text.split())
            letters[side].update(filter(str.isalpha, text.casefold()))
            characters[side].update(text)
    growth = math.sqrt(max(1.0, pairs / max(1, len(sample))))
    shared = sum(count for letter, count in letters[1].items() if letter in letters[0])
    common = shared >= _COMMON * max(1, letters[1].total())
    return CorpusFacts(
        pairs, languages, (round(growth * len(words[0])), round(growth * len(words[1]))),
        (len(characters[0]), len(characters[1])), common,
        sum(len(text.encode()) for pair in sample for text in pair) / max(1, len(sample)),
    )  # fmt: skip


def measure_speeds(
    facts: CorpusFacts, sample: Sequence[tuple[str, str]], seconds: float, scratch: Path, log: Callable[[str], None]
) -> tuple[CorpusFacts, list[Speed]]:
    """Train models of increasing size for a few steps each, until one is too slow for a budget of `seconds`.

    Returns the facts with tokens_per_pair, and the speeds.  Raises DataError if the tokenizer cannot be learned.
    """
    for i, name in enumerate(("sample.source", "sample.target")):
        (scratch / name).write_text("".join(f"{pair[i]}\n" for pair in sample), encoding="utf-8", newline="\n")
    known = replace(facts, distinct=corpus_facts(sample, len(sample), facts.languages).distinct)
    vocabulary = choose_vocabulary(known)  # limited by the sample
    speeds: list[Speed] = []
    cores = 0.0
    for size in SIZES:
        config = probe(facts, vocabulary, size, scratch)
        try:
            run = open_run(config, scratch / f"probe-{size.d_model}-{size.layers}")
            timing = time_steps(run, _SECONDS_PER_SIZE)
        except UsageError:
            if not speeds:
                raise
            break  # not enough memory for this size and all larger ones
        task = run.task
        if not isinstance(task, TranslationTask) or not len(task.store):
            raise DataError("no pair of the sample can be used for training; check the text with 'dragoman doctor'")
        facts = replace(facts, tokens_per_pair=task.tokens() / len(task.store))
        cores = max(cores, timing.cores)
        speeds.append(Speed(size, timing.tokens_per_second, timing.parameters))
        log(f"speed: {size}: {timing.tokens_per_second:,.0f} tokens/s ({timing.steps} steps)")
        if seconds * timing.tokens_per_second < enough_tokens(size, facts.tokens_per_pair):
            break
    if problem := busy_machine(cores):
        log(f"warning: {problem}; on an idle machine training is faster, and a larger model may be better")
    return facts, speeds


def probe(facts: CorpusFacts, vocabulary: Sequence[Setting], size: Size, folder: Path) -> Config:
    """Return the configuration of a model of a size, for measuring its speed on training files in `folder`."""
    document = nested([*vocabulary, *model_settings(size), *optimizer_settings()])
    document["data"] = {
        "root": str(folder.resolve()), "source_language": facts.languages[0], "target_language": facts.languages[1],
        "train": [{"source": "sample.source", "target": "sample.target"}],
    }  # fmt: skip
    document["train"] |= {"batch_tokens": _BATCH_TOKENS, "clip_norm": 1.0}
    return parse_config(document)


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


def untrained_translator(run: TrainingRun, folder: Path) -> Translator:
    """Write the model of a run before its training into a folder, and load it for translation."""
    save_model(folder, run.config, run.task.vocabulary, unique_tensors(run.new_model()), {"step": 0, "scores": {}})
    return Translator.load(folder, run.config.train.device)


def time_translation(translator: Translator, lines: Sequence[str], text: TextConfig) -> float:
    """Return the lines per second at which a model translates a text.

    A model before its training has no ends of sentences, so that its targets get as long as its sources, and its
    repetitions cause second searches: a trained one is faster.
    """
    how: dict[str, Any] = {"sample": True, "beam": 1} if text.sampling else {"beam": text.beam}
    clock, done = time.monotonic(), 0
    while done < len(lines) and time.monotonic() - clock < _SECONDS_PER_SIZE:
        done += len(translator.translate(lines[done : done + _LINES], max_extra=1, **how))
    return done / (time.monotonic() - clock)


def busy_machine(cores: float) -> str | None:
    """Return a warning if other programs slowed down a measurement on the CPU; otherwise None."""
    if torch.cuda.is_available() or cores >= _BUSY:
        return None
    return f"the machine is busy: training got {cores:.0%} of a core while its speed was measured"


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
