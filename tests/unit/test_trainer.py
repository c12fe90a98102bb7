"""One step of training: its learning rate, its dropout, its moving average."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.errors import TrainingError
from dragoman.model_folder import unique_tensors
from dragoman.training.loss import Loss
from dragoman.training.optim import learning_rate
from dragoman.training.run import open_run
from dragoman.training.runlog import Reporter, read_log
from dragoman.training.trainer import Trainer, train
from dragoman.training.world import World
from small_run import Listener, small_config, write_corpus


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data", train=60)


@pytest.fixture
def build(data: Path, tmp_path: Path) -> Any:
    """Builds a trainer that has not made a step yet; its log is closed afterwards."""
    made: list[Trainer] = []

    def build(*overrides: str) -> Trainer:
        trainer = Trainer(open_run(small_config(data, *overrides), tmp_path / "run", str), World("cpu"), Reporter())
        trainer.model.train()
        made.append(trainer)
        return trainer

    yield build
    for trainer in made:
        trainer.log.close()


Build = Callable[..., Trainer]


def batches(trainer: Trainer, *places: int) -> list[Any]:
    return [trainer.read(trainer._plan()[place], place) for place in places]


def test_the_first_update_has_the_rate_of_step_1(data: Path, tmp_path: Path) -> None:
    """Not of step 0, which is none, and not of step 2: warm-up 5 to 0.01, and the budget's decay to 0."""
    config = small_config(data, "train.log_every=1", "train.budget=12 steps", "train.schedule.decay=1.0")
    train(config, tmp_path / "run")
    rates = {row["step"]: row["learning_rate"] for row in read_log(tmp_path / "run") if "loss" in row}
    for step in range(1, 13):
        assert rates[step] == learning_rate(config.train.schedule, 16, step, (step - 1) / 12), step
    assert rates[1] == pytest.approx(0.01 / 5) and rates[12] == pytest.approx(0.01 / 12), "the last update counts too"


def recorded_losses(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    losses: list[float] = []
    real = trainer._forward

    def forward(batch: Any) -> Loss:
        loss = real(batch)
        losses.append(float(loss.nll))
        return loss

    monkeypatch.setattr(trainer, "_forward", forward)
    return losses


def test_each_batch_of_an_update_and_each_update_has_dropout_of_its_own(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = build("model.dropout=0.5", "train.accumulate=3")
    monkeypatch.setattr(trainer.optimizer, "step", lambda: None)  # the same weights all the time
    losses = recorded_losses(trainer, monkeypatch)
    for _ in range(2):
        trainer.step(batches(trainer, 0, 0, 0))
    assert len(set(losses)) == 6, "the same batch six times"
    again = build("model.dropout=0.5", "train.accumulate=3")
    monkeypatch.setattr(again.optimizer, "step", lambda: None)
    repeated = recorded_losses(again, monkeypatch)
    for _ in range(2):
        again.step(batches(again, 0, 0, 0))
    assert repeated == losses, "and all of it follows from the seed"


def test_another_seed_is_other_dropout(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for seed in (1, 2):
        trainer = build("model.dropout=0.5")
        trainer.config = trainer.config.model_copy(update={"seed": seed})
        losses = recorded_losses(trainer, monkeypatch)
        trainer.step(batches(trainer, 0))
        found += losses
    assert found[0] != found[1]


def test_the_moving_average_warms_up(build: Build) -> None:
    """decay = min(ema, (1 + step) / (10 + step)), steps counted from 1: 2/11, 3/12, 4/13 ... and 0.3 at most here."""
    trainer = build("train.ema=0.3")
    assert trainer.ema is not None
    expected = {name: p.clone() for name, p in unique_tensors(trainer.model).items()}
    for step, decay in ((1, 2 / 11), (2, 3 / 12), (3, 0.3), (4, 0.3)):
        trainer.step(batches(trainer, 0))
        for name, p in unique_tensors(trainer.model).items():
            expected[name] = decay * expected[name] + (1 - decay) * p
            torch.testing.assert_close(trainer.ema[name], expected[name], rtol=1e-5, atol=1e-7, msg=f"{step}: {name}")


def test_gradients_are_clipped_to_their_norm(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def norm(trainer: Trainer) -> float:
        gradients: list[Tensor] = [p.grad for p in trainer.model.parameters() if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    free, tight, loose = build(), build("train.clip_norm=0.05"), build("train.clip_norm=1000")
    for trainer in (free, tight, loose):
        trainer.step(batches(trainer, 0))
    assert norm(free) > 0.05 and norm(tight) == pytest.approx(0.05, rel=1e-3) and norm(loose) == norm(free)


def test_the_loss_is_per_word_whatever_the_accumulation(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build("model.dropout=0.0")
    losses = recorded_losses(trainer, monkeypatch)
    some = batches(trainer, 0, 1)
    trainer.step(some)
    words = sum(batch.tgt_tokens for batch in some)
    row = trainer._window.row(trainer.progress)
    assert row is not None and row["loss"] == pytest.approx(sum(losses) / words)
    assert row["step"] == 1 and trainer._window.row(trainer.progress) is None, "nothing since the last row"


def test_bad_steps_are_counted_up_to_the_limit(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build("train.max_bad_steps=3")
    trainer.reporter = listener = Listener()
    before = {name: p.clone() for name, p in unique_tensors(trainer.model).items()}
    real = trainer._forward
    monkeypatch.setattr(trainer, "_forward", lambda batch: Loss(real(batch).smoothed * torch.nan, torch.tensor(1.0), 1))
    for _ in range(2):
        trainer.step(batches(trainer, 0))
    with pytest.raises(TrainingError, match=r"3 steps in a row, up to step 3\. No checkpoint was written yet\."):
        trainer.step(batches(trainer, 0))
    assert trainer.progress.skipped == 3 and "(2 so far)" in listener.text
    assert all(torch.equal(p, before[name]) for name, p in unique_tensors(trainer.model).items())
