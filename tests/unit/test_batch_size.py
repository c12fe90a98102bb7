"""train.batch_tokens = "auto": chosen by memory, once, and stored with the run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dragoman.advice.measurement import time_steps
from dragoman.config import load_config
from dragoman.data.batching import Batch, collate
from dragoman.errors import ConfigError, UsageError
from dragoman.io.run_log import Reporter, read_log
from dragoman.models.model_folder import list_checkpoints, read_config
from dragoman.models.transformer import Stack
from dragoman.tokenizers import PAD
from dragoman.training import batch_size
from dragoman.training.batch_size import choose_size, filled, kept_bytes, sizes
from dragoman.training.distributed import DistributedContext
from dragoman.training.run import open_run
from dragoman.training.step import TrainingStep
from dragoman.training.trainer import Trainer, train
from processes import needs_gloo, run_processes
from small_run import Listener, small_config, write_corpus

AUTO = ("train.batch_tokens=auto", "train.budget=4 steps", "train.validate_every=2 steps")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data", train=200)


def test_sizes_are_powers_of_two_and_the_numbers_between() -> None:
    assert list(sizes(4096)) == [512, 768, 1024, 1536, 2048, 3072, 4096]
    assert list(sizes(3500))[-1] == 3072 and list(sizes(600)) == [512] and list(sizes(10)) == [512]


@pytest.mark.parametrize(
    ("room", "most", "want"), [(5000, 9000, 4096), (6144, 9000, 6144), (1, 9000, 512), (9000, 700, 512)]
)
def test_the_largest_size_that_fits(room: int, most: int, want: int) -> None:
    tried: list[int] = []
    assert choose_size(lambda size: tried.append(size) or size <= room, most) == want  # type: ignore[func-returns-value]
    assert tried == sorted(tried) and sum(size > room for size in tried) <= 1, "nothing larger than the first failure"


def test_a_batch_is_filled_by_repeated_rows() -> None:
    batch = collate([([4, 5, 2], [6, 2]), ([7, 2], [8, 9, 2])])
    found = filled(batch, 31)
    assert found.src.shape == (5, 3) and torch.equal(found.tgt_out[4], batch.tgt_out[0])
    assert found.src_mask is not None and torch.equal(found.src_mask[3], batch.src_mask[1])  # type: ignore[index]
    assert found.tgt_tokens == int((found.tgt_out != PAD).sum()) == 2 + 3 + 2 + 3 + 2
    assert len(filled(batch, 1).src) == 1, "an example that is longer than a batch"
    images = Batch(torch.rand(2, 9, 4), None, torch.zeros(2, 0, dtype=torch.int64), torch.ones(2, 1).long(), 18, 2)
    assert filled(images, 100).src.shape == (10, 9, 4)


def chosen(run: Path) -> Any:
    return read_config(list_checkpoints(run)[-1]).train.batch_tokens


def test_the_number_is_stored_and_used_by_a_resumed_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "_STEPS", 4)
    monkeypatch.setattr(batch_size, "available_memory", lambda _: 10**12)
    run, said = tmp_path / "run", Listener()
    train(small_config(data, *AUTO), run, reporter=said)
    tokens = open_run(small_config(data, *AUTO), tmp_path / "other").task.tokens()
    assert chosen(run) == max(sizes(tokens // 4)) > 512 and "measuring the memory of a step" in said.phases
    assert f"batch size: {chosen(run):,} tokens (at least 4 steps per epoch)" in said.text
    assert load_config(run / "config.toml", stored=True).train.batch_tokens == "auto"
    before = chosen(run)
    monkeypatch.setattr(batch_size, "available_memory", lambda _: 1)
    said = Listener()
    train(small_config(data, *AUTO, "train.budget=8 steps"), run, reporter=said)
    assert f"batch size: {before:,} tokens, as before in this run" in said.text
    assert chosen(run) == before and read_log(run)[-1]["step"] == 8
    with pytest.raises(ConfigError, match=r"train.batch_tokens: the run has 'auto', the configuration 512"):
        train(small_config(data, *AUTO, "train.batch_tokens=512"), run)


def build(data: Path, run: Path, *overrides: str, reporter: Reporter | None = None) -> Trainer:
    trainer = Trainer(open_run(small_config(data, *overrides), run), DistributedContext("cpu"), reporter or Reporter())
    trainer.log.close()
    return trainer


def test_less_memory_gives_smaller_batches(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "_STEPS", 1)
    found = []
    for i, memory in enumerate((None, 10**12, 6 * 10**6, 3 * 10**6, 1)):
        monkeypatch.setattr(batch_size, "available_memory", lambda _, memory=memory: memory)
        said = Listener()
        trainer = build(data, tmp_path / f"run{i}", *AUTO, reporter=said)
        found.append(trainer.config.batch_tokens)
        assert trainer.run.task.batch_tokens == found[-1] == trainer.run.config.train.batch_tokens
        assert ("85% of the available memory" in said.text) == (i >= 2)
    assert found[0] == found[1] and found == sorted(found, reverse=True)
    assert found[1] > found[2] > found[3] > 512 == found[4]  # type: ignore[operator]


def test_an_epoch_has_enough_steps(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "_STEPS", 2)
    tokens = build(data, tmp_path / "run", *AUTO).config.batch_tokens
    accumulated = build(data, tmp_path / "accumulated", *AUTO, "train.accumulate=2").config.batch_tokens
    assert isinstance(tokens, int) and isinstance(accumulated, int) and accumulated <= tokens / 2
    monkeypatch.undo()
    assert build(data, tmp_path / "default", *AUTO).config.batch_tokens == 512


def test_the_memory_of_a_pass_grows_with_the_batch_and_changes_no_weight(data: Path, tmp_path: Path) -> None:
    trainer = build(data, tmp_path / "run", "model.norm.kind=batch")
    before = [t.clone() for t in trainer.model.state_dict().values()]
    batch = filled(trainer.read(trainer.run.task.epoch(0)[0], 0), 512)
    once, twice = (kept_bytes(trainer.training_step, filled(batch, n)) for n in (512, 1024))
    assert once > 512 * 16 * 4 * 10, "at least ten tensors of the width of the model"
    assert twice == pytest.approx(2 * once, rel=0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.state_dict().values(), strict=True))
    assert all(p.grad is None for p in trainer.model.parameters())


def test_layers_that_are_computed_twice_are_counted(data: Path, tmp_path: Path) -> None:
    plain, twice = (build(data, tmp_path / v, f"train.gradient_checkpointing={v}") for v in ("false", "true"))
    batch = plain.read(plain.run.task.epoch(0)[0], 0)
    assert kept_bytes(twice.training_step, batch) == kept_bytes(plain.training_step, batch)
    assert all(stack.recomputes for stack in twice.model.modules() if isinstance(stack, Stack))


def test_the_peak_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch reports the peak; a trial that fails needs more than there is, and other errors are errors."""
    for name in ("reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 1234)
    errors: list[Exception | None] = [None, torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("other")]

    def trial(batch: Batch, step: int) -> None:
        if error := errors.pop(0):
            raise error

    step: Any = SimpleNamespace(context=DistributedContext("cpu"), trial=trial)
    needed, batch = batch_size._measured(step), collate([([4, 2], [5, 2])])
    assert needed(batch) == 1234 and needed(batch) == float("inf")
    with pytest.raises(RuntimeError, match="other"):
        needed(batch)


def choose_together(data: Path, run: Path) -> None:
    rank = os.environ["RANK"]
    batch_size._STEPS = 1
    batch_size.available_memory = lambda _: [10**12, 10**7][int(rank)]  # type: ignore[assignment]
    said = Listener()
    train(small_config(data, *AUTO), run, reporter=said)
    again = Listener()
    train(small_config(data, *AUTO, "train.budget=6 steps"), run, reporter=again)
    (run.parent / rank).write_text(json.dumps([said.text, again.text]))


@needs_gloo
def test_processes_use_the_smallest_of_their_numbers(data: Path, tmp_path: Path) -> None:
    run_processes(2, choose_together, data, tmp_path / "run")
    first, again = json.loads((tmp_path / "0").read_text())
    number = chosen(tmp_path / "run")
    assert f"batch size: {number:,} tokens (smallest of all processes)" in first
    assert f"batch size: {number:,} tokens, as before in this run" in again


def test_the_doctor_measures_with_the_chosen_size(data: Path, tmp_path: Path) -> None:
    run = open_run(small_config(data, *AUTO), tmp_path / "run")
    assert time_steps(run, 0.1).steps >= 1 and run.config.train.batch_tokens == 512


def test_passes_that_communicate_cannot_be_measured(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose trial fails would leave the others waiting."""
    monkeypatch.setattr(TrainingStep, "communicates", True)
    with pytest.raises(UsageError, match='"auto" cannot be measured if weights are split'):
        build(data, tmp_path / "run", *AUTO)


@pytest.mark.parametrize("value", ["car", "true", "15", "16777217", "512.0"])
def test_other_values_are_refused(value: str, data: Path) -> None:
    with pytest.raises(ConfigError, match='accepted: "auto", or 16 to 16,777,216'):
        small_config(data, f"train.batch_tokens={value}")
