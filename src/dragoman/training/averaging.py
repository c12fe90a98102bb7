"""`dragoman average`: the mean of the last checkpoints of a run, after its training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.config import Config, load_config, move_root
from dragoman.data.corpus import corpus_spec
from dragoman.data.profile import TrainingProfile
from dragoman.device import resolve_device
from dragoman.errors import ConfigError, DataError, UsageError
from dragoman.io.lock import lock_run
from dragoman.io.run_log import Reporter
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
    write_pointer,
)
from dragoman.tokenizers import Tokenizer, Vocabulary, load_vocabulary
from dragoman.training.run import validated_checkpoints
from dragoman.training.tasks.translation import TranslationValidation


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
        meta |= {key: value for key, value in read_meta(found[-1]).items() if key in ("init_from", "parts")}
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
    if not config.data.about.translates or config.parallel.valid is None or not isinstance(vocabulary, Tokenizer):
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
