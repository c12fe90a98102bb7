"""What a few steps say about a whole training, and what `doctor` reports of a configuration."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dragoman.advice import doctor, measurement
from dragoman.errors import UsageError
from dragoman.training.cpu import keep_freed_memory
from dragoman.training.distributed import DistributedContext
from small_run import write_corpus, write_toml


class Steps:
    """A trainer whose step `i` takes `seconds[i]` on a clock of its own."""

    def __init__(self, seconds: list[float], accumulate: int = 2) -> None:
        self.seconds = seconds
        self.config = SimpleNamespace(accumulate=accumulate)
        self.model = SimpleNamespace(train=lambda: None)
        self.now = 0.0
        self.steps: list[list[int]] = []

    def read(self, numbers: Any, place: int) -> Any:
        return SimpleNamespace(src_tokens=30, tgt_tokens=20, number=int(numbers[0]))

    def step(self, batches: list[Any]) -> None:
        self.now += self.seconds[len(self.steps)]
        self.steps.append([batch.number for batch in batches])


def measured(trainer: Any, batches: int, monkeypatch: pytest.MonkeyPatch) -> tuple[float, int]:
    monkeypatch.setattr(measurement.time, "monotonic", lambda: trainer.now)
    return measurement._tokens_per_second(trainer, [np.array([number]) for number in range(batches)])


def test_the_rate_leaves_out_the_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Steps([50.0, 50.0, 50.0, 0.5, 1.5])

    assert measured(trainer, 10, monkeypatch) == (2 * 100 / 2.0, 5)
    assert trainer.steps == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_the_rate_is_measured_for_four_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(Steps([9.0] * 3 + [1.0] * 50), 100, monkeypatch) == (100.0, 8)


@pytest.mark.parametrize(("batches", "steps"), [(1, 1), (2, 1), (4, 2), (7, 3)])
def test_few_batches_are_measured_too(batches: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rate, tried = measured(Steps([8.0] * (steps - 1) + [2.0]), batches, monkeypatch)

    assert (rate, tried) == (50 * min(batches, 2) / 2.0, steps)


def told(budget: str, tmp_path: Path) -> tuple[int, float]:
    """The steps and epochs of a forecast for 60 pairs."""
    data = write_corpus(tmp_path / "data", train=60)
    schedule = ("train.schedule.kind=inverse_sqrt", "train.schedule.warmup=1")

    found = doctor.diagnose(write_toml(tmp_path / "c.toml", data, f"train.budget={budget}", *schedule))

    (finding,) = [one for one in found.findings if one.what.startswith("training for")]
    assert finding.severity == "info" and "measured over 6 steps" in finding.advice
    assert found.corpora[0].source.tokens is not None and found.corpora[0].source.tokens.median > 0
    numbers = re.search(r" and ([\d,]+) steps on this machine: ([\d.]+) epochs of 6 steps", finding.what)
    assert numbers is not None, finding.what
    return int(numbers[1].replace(",", "")), float(numbers[2])


def test_a_forecast_counts_steps_and_epochs_of_every_budget(tmp_path: Path) -> None:
    assert told("24 steps", tmp_path) == (24, 4.0)
    assert told("2 epochs", tmp_path) == (12, 2.0)
    steps, epochs = told("80000 tokens", tmp_path)
    assert steps == pytest.approx(6 * epochs, rel=0.01) and told("160000 tokens", tmp_path)[1] == pytest.approx(
        2 * epochs, abs=0.11
    )


def test_a_problem_found_by_the_examination_is_reported_once(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data", train=60)
    target = (data / "train.tgt").read_text().splitlines()
    (data / "train.tgt").write_text("\n".join(target[:-1]) + "\n")

    found = doctor.diagnose(write_toml(tmp_path / "c.toml", data))

    errors = [finding for finding in found.findings if finding.severity == "error"]
    assert not found.healthy and len(errors) == 1 and "60" in errors[0].what and "59" in errors[0].what, errors


def test_seconds_and_minutes() -> None:
    assert [doctor._duration(seconds) for seconds in (0.4, 89.4, 90.0, 6000.0)] == ["0 s", "89 s", "2 min", "100 min"]


def test_the_memory_of_this_process_is_in_bytes() -> None:
    assert 50e6 < DistributedContext("cpu").peak_memory() < 1e12


def test_another_c_library_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    for library in (missing, lambda name: object()):
        monkeypatch.setattr(ctypes, "CDLL", library)
        assert keep_freed_memory() is False


def test_an_insufficient_plan_is_a_warning_and_overrides_correct_it(tmp_path: Path) -> None:
    toml = write_toml(tmp_path / "c.toml", write_corpus(tmp_path / "data", train=60))

    few, enough = (doctor.diagnose(toml, overrides=[f"train.budget={budget}"]) for budget in ("1 epoch", "9 epochs"))

    (warning,) = [
        finding for finding in few.findings if finding.severity == "warning" and "insufficient training" in finding.what
    ]
    assert "insufficient training for this model: 1.0 epochs" in warning.what and '"6 epochs"' in warning.advice
    assert few.healthy and not any("insufficient" in finding.what for finding in enough.findings)


def test_overrides_of_text_files_are_refused(tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data", train=60)
    with pytest.raises(UsageError, match=r"train.seed=1: overrides need a configuration: dragoman doctor CONFIG.toml"):
        doctor.diagnose(data / "train.src", data / "train.tgt", ["train.seed=1"])


@pytest.mark.parametrize(("cores", "busy"), [(0.4, True), (0.9, False)])
def test_doctor_reports_that_the_machine_was_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: float, busy: bool
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(doctor, "time_steps", lambda run: measurement.StepTiming(1000.0, 10, 1e8, 5000, cores, 7))
    findings = doctor.diagnose(write_toml(tmp_path / "c.toml", write_corpus(tmp_path))).findings
    assert busy is any("busy: training got 40% of a core" in finding.what for finding in findings)
