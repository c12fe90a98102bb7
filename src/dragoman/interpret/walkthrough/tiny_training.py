"""The tiny model in the trainer: a run whose only batch is "I am" -> "我 是"."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dragoman.config import Config, TokenizerConfig, parse_config
from dragoman.data.batching import Batch
from dragoman.errors import TrainingError
from dragoman.interpret.walkthrough.tiny_preset import TINY_PAIR, TINY_WORDS, tiny_config, tiny_model
from dragoman.io.run_log import Reporter
from dragoman.tokenizers import EOS, learn_tokenizer
from dragoman.training.distributed import DistributedContext
from dragoman.training.run import TrainingRun
from dragoman.training.tasks.task import Score, Task
from dragoman.training.trainer import Trainer

_TRAIN: dict[str, Any] = {
    "budget": "1 steps", "optimizer": {"kind": "sgd"}, "schedule": {"kind": "constant", "rate": 0.01},
    "label_smoothing": 0.0, "log_every": 1, "validate_every": "1k steps", "device": "cpu",
}  # fmt: skip


def tiny_trainer(
    folder: str | Path, matrices: Mapping[str, Any] | None = None, overrides: Iterable[str] = ()
) -> Trainer:
    """Return a trainer of the tiny model on `TINY_PAIR`; `.train()` makes one step of SGD with learning rate 0.01.

    folder: of the run, created or resumed.  matrices: as for `tiny_model`.  overrides: `key=value` for [train], such as
    "train.budget=100 steps".  The loss is the mean over both target tokens, as in every training.

    Raises UsageError for invalid matrices, ConfigError for invalid overrides, TrainingError if the run of the folder
    began with other matrices.
    """
    weights = tiny_model(matrices).state_dict()
    width = weights["encoder.layers.0.ffn.inner.weight"].size(0)
    document = {
        "data": {"train": [{"source": "", "target": ""}]},  # the task needs no files
        "model": tiny_config(width=width).model_dump(),
        "train": copy.deepcopy(_TRAIN),  # overrides change the document
    }
    config = parse_config(document, overrides)
    for path in (Path(folder) / "checkpoints").glob("*/config.json"):
        saved = json.loads(path.read_text(encoding="utf-8"))["model"]["d_ff"]
        if saved != width:
            raise TrainingError(
                f"{folder}: this run began with feed-forward networks of width {saved}, and the matrices have {width}; "
                "give another folder"
            )
    run = TrainingRun(config, Path(folder), _TinyTask(config, weights), Reporter())
    run.folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(run, DistributedContext(config.train.device), Reporter())
    if trainer.progress.step == 0:
        trainer.model.load_state_dict(weights)
    return trainer


class _TinyTask(Task):
    """One batch, `TINY_PAIR`; there are no validation data.  weights: with which the run begins."""

    def __init__(self, config: Config, weights: Mapping[str, Tensor]) -> None:
        # sentencepiece's model of whole words numbers them by frequency; no configuration has this kind.
        settings = {"kind": "word", "vocab_size": len(TINY_WORDS), "byte_fallback": False}
        words = TokenizerConfig().model_copy(update=settings)
        lines = [word for i, word in enumerate(reversed(TINY_WORDS[EOS + 1 :]), start=1) for _ in range(i)]
        digest = hashlib.blake2b(digest_size=8)
        for name, tensor in sorted(weights.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        super().__init__(config, learn_tokenizer(words, lines), data_hash=f"I am, matrices {digest.hexdigest()}")

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        return [np.zeros(1, dtype=np.int64)]

    def read(self, indices: NDArray[np.int64], epoch: int, batch: int) -> Batch:
        return Batch(*TINY_PAIR, src_tokens=TINY_PAIR.src.numel(), tgt_tokens=TINY_PAIR.targets.numel())

    def tokens(self) -> int:
        return TINY_PAIR.src.numel() + TINY_PAIR.targets.numel()

    def validation(self) -> Score | None:
        return None
