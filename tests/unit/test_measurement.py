"""The sizes that `dragoman new` measures, and its warning about a busy machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.advice import measurement
from dragoman.advice.choice import CorpusFacts, Size, Speed, choose_training, enough_tokens, nested
from dragoman.advice.measurement import StepTiming, corpus_facts, measure_speeds
from dragoman.config import Config
from dragoman.errors import UsageError
from small_run import digit_pairs

SAMPLE = digit_pairs(150, longest=9)
SIZES = (Size(16, 1), Size(32, 1), Size(48, 1))


class Machine:
    """Measures a fixed speed, with `share` of a core."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float = 1.0, largest: int = 99) -> None:
        self.share, self.largest = share, largest
        monkeypatch.setattr(measurement, "time_steps", self.time_steps)
        monkeypatch.setattr(measurement, "SIZES", SIZES)

        self.configs: list[Config] = []

    def time_steps(self, run: Any, seconds: float) -> StepTiming:
        self.configs.append(run.config)
        if run.config.model.d_model > self.largest:
            raise UsageError("no memory")
        return StepTiming(1000.0, 10, 1e8, 5000, self.share, 7)


def measured(tmp_path: Path, seconds: float) -> tuple[CorpusFacts, list[Speed], list[str]]:
    said: list[str] = []
    facts, speeds = measure_speeds(corpus_facts(SAMPLE, 600, ("en", "fr")), SAMPLE, seconds, tmp_path, said.append)
    return facts, speeds, said


def test_sizes_are_measured_until_one_is_too_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch)
    for count in (1, 2, 3):
        seconds = enough_tokens(SIZES[count - 1], 0.0) / 1000 - 1  # of the last one it sees too few tokens
        facts, speeds, said = measured(tmp_path, seconds)
        assert [speed.size for speed in speeds] == list(SIZES[:count]) and len(said) == count
    assert speeds[0].tokens_per_second == 1000.0 and speeds[0].parameters == 5000
    assert said[0] == "speed: width 16, 1 + 1 layers: 1,000 tokens/s (10 steps)"
    words = sum(len(source.split()) + len(target.split()) + 2 for source, target in SAMPLE) / len(SAMPLE)
    assert words < facts.tokens_per_pair < 5 * words and facts.tokens == 600 * facts.tokens_per_pair


def test_speeds_are_measured_with_the_optimizer_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    facts, speeds, _ = measured(tmp_path, 1e9)
    planned = nested(choose_training(facts, speeds[0], "the smallest", 360.0))
    assert len(machine.configs) == len(SIZES)
    for config in machine.configs:
        assert config.train.optimizer.kind == planned["train"]["optimizer"]["kind"] == "muon"


def test_a_size_that_does_not_fit_into_the_memory_ends_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine(monkeypatch, largest=32)
    assert [speed.size for speed in measured(tmp_path, 1e9)[1]] == list(SIZES[:2])
    Machine(monkeypatch, largest=8)
    with pytest.raises(UsageError, match="no memory"):
        measured(tmp_path, 1e9)


@pytest.mark.parametrize(("share", "busy"), [(0.4, True), (1.0, False), (1.9, False)])
def test_a_busy_machine_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, busy: bool) -> None:
    Machine(monkeypatch, share)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    _, _, said = measured(tmp_path, 1e9)
    assert ("warning: the machine is busy: training got 40% of a core" in said[-1]) is busy
