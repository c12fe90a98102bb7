"""Training in float16 with a dynamic loss scale, and steps whose results are read some time later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.data.batching import Batch
from dragoman.errors import TrainingError, UsageError
from dragoman.io.run_log import Reporter, read_log
from dragoman.models.model_folder import unique_tensors
from dragoman.training import loss, progress
from dragoman.training.distributed import DistributedContext
from dragoman.training.loss import Loss, LossScale, check_float16
from dragoman.training.optim import Adam
from dragoman.training.run import open_run
from dragoman.training.step import TrainingStep
from dragoman.training.trainer import Trainer, TrainResult, train
from every_kind import TRANSLATORS, built_network
from processes import needs_gloo, run_processes
from small_run import Listener, small_config, weights, write_corpus

FP16 = ("train.precision=fp16", "train.clip_norm=1.0", "train.ema=0.9")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data", train=60)


@pytest.fixture
def build(data: Path, tmp_path: Path) -> Callable[..., Trainer]:
    def build(*overrides: str) -> Trainer:
        trainer = Trainer(
            open_run(small_config(data, *overrides), tmp_path / "run"), DistributedContext("cpu"), Reporter()
        )
        trainer.model.train()
        trainer.log.close()
        return trainer

    return build


def test_the_scale_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "SCALE_INTERVAL", 3)
    ours = LossScale(torch.device("cpu"))
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for finite in [True] * 2 + [False] * 2 + [True] * 7 + [False] + [True] * 4:
        parameter.grad = theirs.scale(torch.tensor([1.0, 1.0 if finite else torch.inf]))
        gradients = [parameter.grad.clone()]
        ours.unscale(gradients)
        theirs.unscale_(optimizer)
        assert torch.equal(gradients[0], parameter.grad)
        theirs.step(optimizer)
        theirs.update()
        ours.update(torch.tensor(finite))
        assert ours.scale.item() == theirs.get_scale()
        assert ours.steps.item() == theirs._get_growth_tracker()


def test_the_scale_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "SCALE_INTERVAL", 1)
    scale = LossScale(torch.device("cpu"))
    for finite, limit in ((True, 2.0**24), (False, 1.0)):
        for _ in range(30):
            scale.update(torch.tensor(finite))
        assert scale.scale.item() == limit


def test_the_gradient_does_not_depend_on_the_scale(
    build: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradient(trainer: Trainer) -> torch.Tensor:
        monkeypatch.setattr(trainer.optimizer, "step", lambda: None)
        trainer.step([trainer.read(trainer.run.task.epoch(0)[0], 0)])
        return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])

    expected = gradient(build("model.dropout=0.0"))
    for exponent in (10, 14):
        trainer = build("model.dropout=0.0", "train.precision=fp16", "train.clip_norm=1000")
        assert trainer.training_step.loss_scale is not None
        trainer.training_step.loss_scale.load(2.0**exponent, 0)
        found = gradient(trainer)
        assert torch.nn.functional.cosine_similarity(found, expected, 0) > 0.9995
        assert float(found.norm() / expected.norm()) == pytest.approx(1, abs=1e-2)


def with_factor(monkeypatch: pytest.MonkeyPatch, step: TrainingStep, factor: float) -> None:
    """Multiply the losses, whose gradients then are not finite."""
    real = step.forward

    def forward(batch: Batch) -> Loss:
        loss = real(batch)
        return Loss(loss.smoothed * factor, loss.nll, loss.tokens)

    monkeypatch.setattr(step, "forward", forward)


def test_an_overflow_is_no_bad_step_until_the_scale_is_1(
    build: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = build("train.precision=fp16", "train.max_bad_steps=3")
    before = {name: p.clone() for name, p in unique_tensors(trainer.model).items()}
    batch = trainer.read(trainer.run.task.epoch(0)[0], 0)
    with_factor(monkeypatch, trainer.training_step, torch.inf)
    for _ in range(16):
        trainer.step([batch])
    progress = trainer.progress
    assert (progress.overflows, progress.skipped, progress.loss_scale, progress.step) == (16, 0, 1.0, 16)
    trainer.step([batch])
    trainer.step([batch])
    with pytest.raises(TrainingError, match="3 steps in a row, up to step 19"):
        trainer.step([batch])
    assert (progress.overflows, progress.skipped) == (16, 3)
    assert all(torch.equal(p, before[name]) for name, p in unique_tensors(trainer.model).items())


class Stopped(Exception):
    """The process ends here."""


class StopAt(Reporter):
    def __init__(self, step: int) -> None:
        self.step = step

    def progressed(self, status: Any) -> None:
        if status.step == self.step:
            raise Stopped


@pytest.mark.parametrize("reads", [True, False])
def test_a_resumed_training_has_the_same_bytes(
    reads: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "SCALE_INTERVAL", 2)  # the scale grows until gradients overflow
    read_later(monkeypatch, reads)
    config = small_config(data, *FP16, "train.save_every=4 steps", "train.schedule.peak=0.005")
    said = Listener()
    whole = train(config, tmp_path / "whole", reporter=said)
    assert f"{whole.progress.overflows:,} of 24 steps were skipped because a gradient exceeded the range" in said.text
    with pytest.raises(Stopped):
        train(config, tmp_path / "run", reporter=StopAt(15))
    resumed = train(config, tmp_path / "run")
    assert whole.progress.overflows > 0, "something to restore"
    for name in ("overflows", "skipped", "loss_scale", "scale_steps", "step"):
        assert getattr(whole.progress, name) == getattr(resumed.progress, name), name
    assert weights(tmp_path / "whole") == weights(tmp_path / "run")
    rows = read_log(tmp_path / "run")
    assert rows[-1].get("overflows", 0) <= whole.progress.overflows
    assert any("overflows" in row for row in rows)


@pytest.mark.parametrize(("kind", "fails"), [("lstm", True), ("lstm", False), ("gru", True), ("paper", True)])
def test_a_processor_without_an_lstm_in_float16(kind: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(*_: Any) -> None:
        if fails:
            raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive")

    monkeypatch.setattr(torch.nn.LSTM, "forward", forward)
    network = built_network(TRANSLATORS[kind], 20, 20)
    if not fails or kind != "lstm":
        check_float16(network)
        return
    with pytest.raises(UsageError, match="this processor cannot compute an LSTM in float16; accepted on it"):
        check_float16(network)


def test_a_training_in_float16_learns(data: Path, tmp_path: Path) -> None:
    scores = [
        train(small_config(data, f"train.precision={name}", "model.dropout=0.0"), tmp_path / name).scores["valid_loss"]
        for name in ("float32", "fp16")
    ]
    assert scores[1] == pytest.approx(scores[0], abs=0.02)


def train_in_float16(data: Path, run: Path) -> None:
    import os

    loss.SCALE_INTERVAL = 2
    seen: list[Trainer] = []
    close = Trainer.close
    Trainer.close = lambda self: (seen.append(self), close(self))[1]  # type: ignore
    result = train(small_config(data, *FP16, "train.batch_tokens=150"), run)
    total = float(sum(p.double().abs().sum() for p in seen[0].model.parameters()))
    progress = result.progress
    text = f"{total!r} {progress.overflows} {progress.loss_scale} {progress.skipped}"
    (run.parent / os.environ["RANK"]).write_text(text)


@needs_gloo
def test_processes_agree(data: Path, tmp_path: Path) -> None:
    run_processes(2, train_in_float16, data, tmp_path / "run")
    found = [(tmp_path / rank).read_text() for rank in "01"]
    assert found[0] == found[1] and int(found[0].split()[1]) > 0


# ------------------------------------------------------------------------------------------ results that are read later


def read_later(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    """Let steps on the CPU behave as on a GPU, and read them only when they are logged or saved."""
    real = TrainingStep.__init__

    def init(self: TrainingStep, *args: Any) -> None:
        real(self, *args)
        self.reads = reads

    monkeypatch.setattr(TrainingStep, "__init__", init)
    monkeypatch.setattr(progress, "READ_INTERVAL", 0.0 if reads else 1e9)


@pytest.mark.parametrize("extra", [(), ("train.precision=fp16",), ("train.optimizer.kind=adamw", "train.ema=0.0")])
def test_reading_later_changes_nothing(
    extra: tuple[str, ...], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision to skip a step is made on the device, by the optimizer and the moving average."""
    real, calls = TrainingStep.forward, [0]

    def forward(self: TrainingStep, batch: Batch) -> Loss:
        loss = real(self, batch)
        calls[0] += 1
        bad = calls[0] % 24 in (4, 10, 11)  # the loss of these steps is not finite
        return Loss(loss.smoothed * (torch.nan if bad else 1.0), loss.nll, loss.tokens)

    monkeypatch.setattr(TrainingStep, "forward", forward)
    results: list[TrainResult] = []
    for name, reads in (("now", True), ("later", False)):
        with monkeypatch.context() as patch:
            read_later(patch, reads)
            overrides = ("train.clip_norm=0.5", "train.ema=0.9", "train.log_every=5", *extra)
            results.append(train(small_config(data, *overrides), tmp_path / name))
    now, later = results
    for field in ("step", "tokens", "skipped", "overflows", "bad_in_a_row", "loss_scale", "scale_steps", "best"):
        assert getattr(now.progress, field) == getattr(later.progress, field), field
    assert now.progress.skipped + now.progress.overflows == 3
    assert weights(tmp_path / "now") == weights(tmp_path / "later")
    rows = [[(r["step"], r.get("loss"), r.get("valid_loss")) for r in read_log(tmp_path / n)] for n in ("now", "later")]
    assert rows[0] == rows[1]


def test_bad_steps_that_are_read_later_stop_the_training(
    build: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = build("train.max_bad_steps=3")
    trainer.training_step.reads = False
    with_factor(monkeypatch, trainer.training_step, torch.nan)
    batch = trainer.read(trainer.run.task.epoch(0)[0], 0)
    for _ in range(5):
        trainer.step([batch])
    assert trainer.progress.skipped == 0
    with pytest.raises(TrainingError, match=r"3 steps in a row, up to step 3\. No checkpoint was written yet\."):
        trainer._results.read()


def test_a_skipped_step_of_adam_changes_no_bit(build: Callable[..., Trainer]) -> None:
    trainer = build()
    batch = trainer.read(trainer.run.task.epoch(0)[0], 0)
    trainer.step([batch])
    optimizer = trainer.optimizer
    assert isinstance(optimizer, Adam) and optimizer.can_skip
    before = [p.clone() for p in trainer.model.parameters()]
    state = {p: {k: v.clone() for k, v in values.items()} for p, values in optimizer.state.items()}
    for p in trainer.model.parameters():
        p.grad = torch.full_like(p, torch.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert all(torch.equal(v, optimizer.state[p][k]) for p, values in state.items() for k, v in values.items())


@pytest.mark.parametrize(("kind", "can_skip"), [("adam", True), ("adamw", True), ("sgd", False), ("muon", True)])
def test_optimizers_that_cannot_skip_are_read(kind: str, can_skip: bool, build: Callable[..., Trainer]) -> None:
    trainer = build(f"train.optimizer.kind={kind}")
    assert trainer.optimizer.can_skip == can_skip and trainer.training_step.reads
