"""Run folders: config.toml, log.jsonl, tensorboard/, checkpoints/<step>/, and the pointers best, last, average."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman._version import __version__
from dragoman.config import Config, ModelConfig, dump_toml, flatten, load_config, move_root, resolve_path
from dragoman.data.corpus import corpus_spec
from dragoman.data.profile import TrainingProfile
from dragoman.data.tokenizer import Tokenizer
from dragoman.data.vocabulary import Vocabulary, load_vocabulary
from dragoman.device import resolve_device
from dragoman.errors import ConfigError, DataError, ModelFolderError, TrainingError, UsageError, nearest
from dragoman.io.lock import lock_run
from dragoman.io.run_log import Reporter
from dragoman.io.writing import recover_folders, remove_folder, write_file, writing
from dragoman.models.model_folder import (
    average_tensors,
    build_for,
    list_checkpoints,
    load_tensors,
    read_config,
    read_meta,
    read_profile,
    runs_inside,
    save_model,
    unique_tensors,
    write_pointer,
)
from dragoman.models.seq2seq import Network
from dragoman.models.size import check_memory, count_parameters
from dragoman.training.checkpoint import read_training, training_files
from dragoman.training.optim import Progress, state_size
from dragoman.training.optimizers import Optimizer
from dragoman.training.tasks.registry import open_task
from dragoman.training.tasks.task import Task
from dragoman.training.tasks.translation import TranslationValidation

__all__ = ["TrainingRun", "average_run", "check_files", "open_run", "validated_checkpoints", "with_root_of_run"]

_MAY_CHANGE = ("train.budget", "train.validate_every", "train.validate_sentences", "train.save_every",
               "train.patience", "train.keep", "train.log_every", "train.average", "train.device", "train.threads",
               "train.max_bad_steps", "train.parallel.", "train.gradient_checkpointing", "train.expected_speed",
               "search.", "data.root")  # fmt: skip
"""Settings that a resumed run may change, because they do not affect the steps already made."""

_PATHS = (
    "relative paths start at the folder of the TOML file, or at data.root in it; data.root=FOLDER on the command line "
    "changes it; for the corpora of the recipes, see docs/data.md"
)
_MAX_LISTED = 1000


def open_run(config: Config, folder: Path, reporter: Reporter | None = None, writes: bool = True) -> TrainingRun:
    """Open the run in `folder`, or create it, and prepare its data in `<folder>/../prepared`, shared by sibling runs.

    writes: whether this process writes the run folder; of several processes that train together, only one does.
    Raises ConfigError if the folder contains a run with another configuration, and if files of [data] do not exist.
    """
    check_files(config)
    stored = folder / "config.toml"
    if writes:
        recover_folders(folder / "checkpoints")
        if list_checkpoints(folder) and stored.is_file():
            _refuse_changes(load_config(stored, stored=True), config, folder)
    reporter = reporter or Reporter()
    if config.data.kind != "parallel":  # the store of parallel data reports its phases
        reporter.phase("preparing the data")
    task = _open_task(config, folder.parent / "prepared", reporter)
    if writes:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_file(stored, dump_toml(_with_relative_root(config, folder)).encode())
    if task.profile is not None:
        reporter.log(f"data: {task.profile}")
    return TrainingRun(config, folder, task, reporter)


def _with_relative_root(config: Config, folder: Path) -> Config:
    """Return the configuration with `data.root` relative to the run folder, in which it is stored."""
    if not list(config.data.files()):
        return config
    root = move_root(config.data.root, folder)
    return config.model_copy(update={"data": config.data.model_copy(update={"root": root})})


def _open_task(config: Config, prepared: Path, reporter: Reporter) -> Task:
    try:
        return open_task(config, prepared, reporter)
    except OSError as error:
        # An error without a file name comes from a write; one that names a file elsewhere comes from reading it.
        if error.filename is not None and not Path(str(error.filename)).is_relative_to(prepared):
            raise
        with writing(Path(str(error.filename or prepared))):
            raise


def check_files(config: Config) -> None:
    """Raise ConfigError that lists every file of [data] that does not exist."""
    problems = []
    for key, text in config.data.files():
        try:
            path = resolve_path(text, config.data.root)
        except UsageError as error:
            problems.append(f"data.{key}: {error}")
            continue
        if not path.is_file() and not (key.endswith(".path") and path.is_dir()):
            tried = os.path.normpath(Path.cwd() / path)
            problems.append(f"data.{key}: no such file: {tried}{_elsewhere(text, path)}; {_PATHS}")
    if problems:
        raise ConfigError("[data] of the configuration", problems)


def _elsewhere(text: str, path: Path) -> str:
    """Return a hint about a missing file: found in the current directory, or the most similar name in its folder."""
    here = resolve_path(text)
    if here != path and here.is_file():
        return " (it exists in the current directory: data.root=.)"
    beside = path.parent.iterdir() if path.parent.is_dir() else iter(())
    return nearest(path.name, [other.name for other in islice(beside, _MAX_LISTED)])


def _refuse_changes(old: Config, new: Config, folder: Path) -> None:
    before, after = (flatten(config.model_dump(mode="json")) for config in (old, new))
    problems = [
        f"{key}: the run has {before.get(key)!r}, the configuration {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not key.startswith(_MAY_CHANGE)
    ]
    if problems:
        advice = "A run can only be resumed with its own configuration; start a new run with another --out."
        raise ConfigError(str(folder), problems, advice)


class TrainingRun:
    """A run folder with its configuration and its task."""

    def __init__(self, config: Config, folder: Path, task: Task, reporter: Reporter) -> None:
        self.config, self.folder, self.task, self.reporter = config, folder, task, reporter

    def check_memory(self, device: torch.device) -> None:
        """Raise UsageError if the memory does not suffice for training the model on the device."""
        vocabulary = self.task.vocabulary
        sizes = self.config.model, vocabulary.source_size, vocabulary.target_size
        train = self.config.train
        copies = 2 + state_size(train.optimizer) + bool(train.ema)  # weights, gradients, optimizer, moving average
        check_memory(*sizes, shared=vocabulary.shared, copies=copies, device=device)

    def parameters_of(self, model: ModelConfig) -> int:
        """Return the number of parameters that a model would have with the vocabulary of this run."""
        vocabulary = self.task.vocabulary
        return count_parameters(model, vocabulary.source_size, vocabulary.target_size, shared=vocabulary.shared)

    def identity(self) -> dict[str, str]:
        """Return what must be equal in all processes that train together, and decides which batches they read."""
        flat = flatten(self.config.model_dump(mode="json"))
        settings = {key: value for key, value in flat.items() if not key.startswith(("data.root", "train.device"))}
        vocabulary = b"".join(self.task.vocabulary.files().values())
        return {
            "Dragoman": __version__,
            "PyTorch": torch.__version__,
            "NumPy": np.__version__,
            "configuration": _short_hash(repr(sorted(settings.items())).encode()),
            "training data": self.task.data_hash,
            "vocabulary": _short_hash(vocabulary),
            "batches": _short_hash(b"".join(batch.tobytes() for batch in self.task.block(0, 0))),
        }

    def new_model(self) -> Network:
        return build_for(self.config, self.task.vocabulary)

    def resume(self, model: Network, optimizer: Optimizer, ema: dict[str, Tensor] | None) -> Progress:
        """Load the newest intact checkpoint into the arguments and return its progress; damaged ones are logged."""
        found = list_checkpoints(self.folder)
        for checkpoint in reversed(found):
            try:
                progress, data_hash = read_training(checkpoint, model, optimizer, ema)
            except ModelFolderError as error:
                self.reporter.warn(f"damaged checkpoint, using the previous one: {error}")
                continue
            if data_hash != self.task.data_hash:
                raise TrainingError(
                    f"{self.folder}: the training data changed since this run started (hash {data_hash}, now "
                    f"{self.task.data_hash}); restore the old files, or start a new run with another --out"
                )
            if load_vocabulary(checkpoint).files() != self.task.vocabulary.files():
                raise TrainingError(
                    f"{self.folder}: the same data yields another vocabulary than at the start of this run, probably "
                    "because sentencepiece or Dragoman was upgraded; install the earlier versions, or start a new run "
                    "with another --out"
                )
            for later in found[found.index(checkpoint) + 1 :]:
                remove_folder(later)
            self._tidy(checkpoint, progress)
            self.reporter.log(
                f"resuming {self.folder} after step {progress.step:,} (budget: {self.config.train.budget})"
            )
            return progress
        if found:
            raise TrainingError(
                f"{self.folder}: all {len(found)} checkpoints are damaged; start a new run with another --out"
            )
        return Progress()

    def last_good(self) -> str:
        """Return a sentence that names the newest checkpoint, for error messages."""
        found = list_checkpoints(self.folder)
        return f"The last good checkpoint is {found[-1]}." if found else "No checkpoint was written yet."

    def is_validated(self, progress: Progress) -> bool:
        """Return whether the current step has a validated checkpoint."""
        target = self.folder / "checkpoints" / f"{progress.step:08d}"
        return target.is_dir() and _is_validated(target)

    def save(
        self,
        model: Network,
        optimizer: Optimizer,
        progress: Progress,
        ema: Mapping[str, Tensor] | None,
        scores: dict[str, Any],
        validated: bool = True,
    ) -> None:
        """Write the checkpoint of this step, update `last` and `best`, and remove old checkpoints.

        validated: False for a checkpoint between two validations.  Only the newest of these is kept, and no average
        includes it.
        """
        target = self.folder / "checkpoints" / f"{progress.step:08d}"
        weights = unique_tensors(model) if ema is None else ema
        training = training_files(model, optimizer, progress, self.task.data_hash, ema)
        meta = {"step": progress.step, "scores": scores, "validated": validated}
        save_model(target, self.config, self.task.vocabulary, weights, meta, training, self.task.profile)
        self._tidy(target, progress)

    def _tidy(self, newest: Path, progress: Progress) -> None:
        """Update the pointers and remove old checkpoints."""
        write_pointer(self.folder, "last", newest)
        best = newest.with_name(f"{progress.best_step:08d}") if self.task.validates else newest
        if best.is_dir():
            write_pointer(self.folder, "best", best)
        for old in list_checkpoints(self.folder):
            if old != newest and not _is_validated(old):
                remove_folder(old)
        for old in validated_checkpoints(self.folder)[: -max(self.config.train.keep, self.config.train.average)]:
            if old != best:
                remove_folder(old)

    def average(self, count: int) -> dict[str, Tensor] | None:
        """Return the mean weights of the last `count` validated checkpoints, or None if there are fewer than two."""
        last = validated_checkpoints(self.folder)[-count:]
        return average_tensors(last) if len(last) > 1 else None

    def save_average(
        self, weights: Mapping[str, Tensor], progress: Progress, scores: dict[str, Any], best: bool
    ) -> Path:
        """Write an averaged model and point `average`, and optionally `best`, to it."""
        target = self.folder / "checkpoints" / "average"
        meta = {"step": progress.step, "scores": scores}
        save_model(target, self.config, self.task.vocabulary, weights, meta, profile=self.task.profile)
        write_pointer(self.folder, "average", target)
        if best:
            write_pointer(self.folder, "best", target)
        return target


def _short_hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=4).hexdigest()


def validated_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, sorted by step, except those saved between validations."""
    return [checkpoint for checkpoint in list_checkpoints(run) if _is_validated(checkpoint)]


def _is_validated(checkpoint: Path) -> bool:
    try:
        meta = read_meta(checkpoint)
    except ModelFolderError:
        return True
    return bool(meta.get("validated", not meta.get("interrupted")))  # earlier versions wrote "interrupted": true


def average_run(folder: Path, last: int) -> Path:
    """Average the last checkpoints of a run into `checkpoints/average-last<N>` and point `average` to it.

    Its `meta.json` has the validation scores of a translation model whose validation data still exist.  `best` is
    unchanged.  Raises UsageError if `last` is below 2 or above the number of validated checkpoints, and while the run
    is in training, because training removes checkpoints.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; specify a run folder written by 'dragoman train'")
    if not list_checkpoints(folder) and (inside := runs_inside(folder)):
        raise UsageError(f"{folder}: not a run; specify a run inside it: {', '.join(map(str, inside))}")
    with lock_run(folder):
        found = validated_checkpoints(folder)
        if last < 2 or len(found) < last:
            accepted = f"accepted: 2 to {len(found)}" if len(found) > 1 else "an average needs at least 2"
            raise UsageError(f"{folder}: cannot average the last {last} checkpoints; it has {len(found)}, {accepted}")
        config, vocabulary = read_config(found[-1]), load_vocabulary(found[-1])
        target = folder / "checkpoints" / f"average-last{last}"
        weights, profile = average_tensors(found[-last:]), read_profile(found[-1])
        scores = _validation_scores(with_root_of_run(config, found[-1]), vocabulary, weights, profile)
        meta = {"step": int(found[-1].name), "scores": scores, "averaged": [p.name for p in found[-last:]]}
        save_model(target, config, vocabulary, weights, meta, profile=profile)
        write_pointer(folder, "average", target)
        return target


def with_root_of_run(config: Config, checkpoint: Path) -> Config:
    """Return the configuration of a checkpoint with the `data.root` of its run, relative to the current directory.

    The `data.root` of the checkpoint itself is relative to the directory in which the training was started.
    """
    run = checkpoint.parent.parent
    if checkpoint.parent.name != "checkpoints" or not (run / "config.toml").is_file():
        return config
    try:
        root = move_root(load_config(run / "config.toml", stored=True).data.root, Path(), start=run)
    except ConfigError:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"root": root})})


def _validation_scores(
    config: Config, vocabulary: Vocabulary, weights: Mapping[str, Tensor], profile: TrainingProfile | None
) -> dict[str, Any]:
    """Return the validation scores of a translation model; {} for other tasks, which need their training data."""
    if config.data.kind != "parallel" or config.parallel.valid is None or not isinstance(vocabulary, Tokenizer):
        return {}
    try:
        validation = TranslationValidation(
            config, corpus_spec(config, config.parallel.valid), vocabulary, Reporter(), profile
        )
    except (UsageError, DataError):  # the data were moved or changed
        return {}
    network = build_for(config, vocabulary)
    load_tensors(network, weights, Path("average"))
    return validation(network.to(resolve_device(config.train.device)))
