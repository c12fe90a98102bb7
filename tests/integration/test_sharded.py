"""Training with weights that are split over processes (train.parallel.kind = "fsdp")."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dragoman.io.run_log import read_log
from dragoman.models.model_folder import list_checkpoints, verify
from processes import needs_gloo, run_processes
from small_run import train_in_child, write_corpus

pytestmark = needs_gloo
SHARDED = "train.parallel.kind=fsdp"
SAME_STEPS = (
    "train.budget=20 steps", "train.validate_every=10 steps", "model.dropout=0.2", "train.clip_norm=1.0",
    "train.ema=0.9", "train.batch_tokens=60", "model.bias=false",
)  # fmt: skip
"""Without biases: Adam amplifies rounding errors of the bias of the keys, whose gradient is 0."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data", train=130)


def checkpoint(run: Path) -> dict[str, torch.Tensor]:
    folder = list_checkpoints(run)[-1]
    verify(folder)
    return load_file(folder / "model.safetensors")


def losses(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_log(run) if "loss" in row]


def assert_equal_runs(run: Path, expected: Path) -> None:
    found, whole = checkpoint(run), checkpoint(expected)
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6, msg=f"{run.name}: {name}")
    for (step, loss), (expected_step, expected_loss) in zip(losses(run), losses(expected), strict=True):
        assert step == expected_step and loss == pytest.approx(expected_loss, rel=1e-5), step


@pytest.mark.parametrize("size", [2, 3])
def test_split_weights_are_those_of_replicas(size: int, data: Path, tmp_path: Path) -> None:
    run_processes(size, train_in_child, data, SAME_STEPS, tmp_path / "replicated")
    run_processes(size, train_in_child, data, (*SAME_STEPS, SHARDED), tmp_path / "fsdp")
    assert_equal_runs(tmp_path / "fsdp", tmp_path / "replicated")
