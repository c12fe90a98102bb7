"""P3 with several processes: one is killed, the others end, and the resumed run ends with the same bytes."""

from __future__ import annotations

import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from dragoman.io.run_log import read_log
from dragoman.models.model_folder import list_checkpoints
from processes import start_processes
from small_run import train_in_child, weights, write_corpus

SIZE = 3  # with more than two processes, the order in which gradients are added matters
OVERRIDES = (
    "train.budget=60 steps", "train.validate_every=9 steps", "train.save_every=2 steps", "train.keep=2",
    "train.batch_tokens=120", "train.ema=0.9", "train.clip_norm=1.0", "model.dropout=0.2", "tokenizer.sampling=0.1",
    "train.parallel.timeout=60 s", "train.average=2",
)  # fmt: skip
KINDS = {"replicated": (), "fsdp": ("train.parallel.kind=fsdp", "train.budget=20 steps")}  # steps take longer
FEW, MANY = {"replicated": 4, "fsdp": 2}, 50


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data", train=290)


def start(data: Path, run: Path, kind: str) -> list[BaseProcess]:
    return start_processes(SIZE, train_in_child, data, (*OVERRIDES, *KINDS[kind]), run)


def whole(run: Path) -> dict[str, object]:
    models = {p.parent.name: p.read_bytes() for p in (run / "checkpoints").glob("*/model.safetensors")}
    scores = [(row["step"], row.get("valid_loss")) for row in read_log(run) if "valid_loss" in row]
    return {"models": models, "last": weights(run), "best": weights(run, "best"), "scores": scores}


def kill_and_resume(kind: str, kills: int, data: Path, folder: Path) -> None:
    """Train; kill one process of `kills` resumed runs, the main process as often as the others; compare the bytes."""
    began = time.monotonic()
    for process in start(data, folder / "uninterrupted", kind):
        process.join(300)
    longest = 1.5 * (time.monotonic() - began)
    expected = whole(folder / "uninterrupted")
    assert len(list_checkpoints(folder / "uninterrupted")) >= 2

    draw, killed, runs, saved = random.Random(kills), 0, 0, 0
    while killed < kills:
        runs += 1
        run = folder / f"killed{runs}"
        while True:
            began = time.monotonic()
            processes = start(data, run, kind)
            victim = processes[draw.choice([0, draw.randrange(1, SIZE)])]
            # Not before all are connected: until then, only torchrun notices that a process has ended.
            victim.join(draw.uniform(1.5, max(2.5, longest)) if killed < kills else None)
            if not victim.is_alive():
                for process in processes:
                    process.join(300)
                assert [process.exitcode for process in processes] == [0] * SIZE
                longest = 1.5 * (time.monotonic() - began)  # the speed of the machine changes
                break
            victim.kill()
            killed += 1
            for process in processes:
                process.join(300)
                assert process.exitcode is not None, "the others end"
            saved += bool(list_checkpoints(run))
        assert whole(run) == expected
    assert saved, "some process was killed after a checkpoint"


@pytest.mark.parametrize("kind", ["replicated", "fsdp"])
def test_a_process_is_killed_at_a_few_random_moments(kind: str, data: Path, tmp_path: Path) -> None:
    kill_and_resume(kind, FEW[kind], data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["replicated", "fsdp"])
def test_a_process_is_killed_at_many_random_moments(kind: str, data: Path, tmp_path: Path) -> None:
    kill_and_resume(kind, MANY, data, tmp_path)
