"""Run folders written by hand: a configuration, a log and the weights of one checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from dragoman.config import dump_toml
from dragoman.models.model_folder import write_folder, write_pointer
from small_run import small_config

SHAPES = {"embedding.weight": (7, 5), "layers.0.bias": (3,), "scale": ()}
"""39 parameters."""


def training_row(step: int, loss: float | None, speed: float = 1000.0) -> dict[str, Any]:
    return {"step": step, "loss": loss, "learning_rate": 1e-3, "tokens_per_second": speed, "seconds": step / 4}


def validation_row(step: int, **scores: float) -> dict[str, Any]:
    return {"step": step, "epoch": step / 10, "seconds": step / 4 + 0.5, **scores}


def fabricate(
    folder: Path, rows: Sequence[dict[str, Any]], scores: dict[str, float] | None = None, *overrides: str
) -> Path:
    """A run folder; with `scores` it has a checkpoint of step 12 that is the best and the last."""
    folder.mkdir(parents=True)
    config = small_config(Path("data"), *overrides)
    (folder / "config.toml").write_text(dump_toml(config), encoding="utf-8")
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if scores is not None:
        checkpoint = folder / "checkpoints" / "00000012"
        tensors = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        files = {"config.json": config.model_dump_json().encode(), "model.safetensors": safetensors.numpy.save(tensors)}
        write_folder(checkpoint, files, {"step": 12, "scores": scores})
        for name in ("best", "last"):
            write_pointer(folder, name, checkpoint)
    return folder


def three_runs(folder: Path) -> Path:
    """`lstm` with two seeds, and a wider one."""
    runs = {"lstm-1": "train.seed=1", "lstm-2": "train.seed=2", "wide": "model.d_ff=28"}
    for i, (name, override) in enumerate(runs.items()):
        bleu, loss = 30.0 + 2 * i, 2.0 - i / 4
        scores = {"valid_loss": loss, "perplexity": 7.5, "bleu": bleu}
        fabricate(folder / name, learning(bleu, loss), scores, override)
    return folder


def learning(bleu: float, loss: float = 2.0, speed: float = 1000.0) -> list[dict[str, Any]]:
    """Twelve steps that end at these validation scores."""
    return [
        training_row(3, 6.5, speed),
        training_row(6, 4.25, speed + 50),
        validation_row(6, valid_loss=loss + 1.5, perplexity=30.0, bleu=bleu / 2, memory_mb=310.5),
        training_row(9, 3.5, speed - 25),
        training_row(12, 2.75, speed + 10),
        validation_row(12, valid_loss=loss, perplexity=7.5, bleu=bleu, memory_mb=290.0),
    ]
