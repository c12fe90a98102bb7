"""Settings with which a run cannot work out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman.config import TrainConfig
from dragoman.training.optim import Progress
from dragoman.training.plan import plan_warnings, warmup_warning
from dragoman.training.tasks.task import Task


class TenThousandTokens:
    config = SimpleNamespace(model=SimpleNamespace(d_model=64))

    def tokens(self) -> int:
        return 10_000


def plan(batches: int = 20, **settings: Any) -> list[str]:
    """An epoch of `batches` batches and 10,000 tokens."""
    config = TrainConfig.model_validate(settings)
    return list(plan_warnings(config, cast(Task, TenThousandTokens()), batches))


def warmup(steps: int) -> dict[str, Any]:
    return {"schedule": {"kind": "inverse_sqrt", "warmup": steps}}


@pytest.mark.parametrize(
    ("budget", "accumulate", "steps"),
    [
        ("300 steps", 1, 300),
        ("3 epochs", 1, 60),
        ("2.5 epochs", 1, 50),
        ("3 epochs", 3, 21),  # 7 steps an epoch, the last one of two batches
        ("40k tokens", 1, 80),
        ("40k tokens", 2, 40),
    ],
)
def test_a_warm_up_that_is_longer_than_the_budget(budget: str, accumulate: int, steps: int) -> None:
    common: dict[str, Any] = {"budget": budget, "accumulate": accumulate}
    assert plan(**common, **warmup(steps)) == []
    (said,) = plan(**common, **warmup(steps + 1))
    assert f"train.schedule.warmup is {steps + 1:,} steps, but train.budget = '" in said
    assert f"is about {steps:,} steps: the learning rate never reaches its peak; lower the warm-up" in said


def test_a_budget_of_minutes_is_judged_at_the_end() -> None:
    config = TrainConfig.model_validate({"budget": "20 min", **warmup(4000)})
    assert plan(budget="20 min", **warmup(4000)) == []
    said = warmup_warning(config, Progress(step=3999))
    assert said is not None and "training ended after 3,999 of the 4,000 steps of train.schedule.warmup" in said
    assert warmup_warning(config, Progress(step=4000)) is None
    assert warmup_warning(TrainConfig.model_validate({"budget": "9 steps"}), Progress(step=9)) is None, "said before"


@pytest.mark.parametrize(
    ("budget", "validate_every", "made"),
    [
        ("300 steps", "100 steps", 3),
        ("301 steps", "100 steps", 4),  # the last one at the end
        ("20 min", "5 min", 4),
        ("3 epochs", "1 epoch", 3),
        ("3 epochs", "10 steps", 6),
        ("40 steps", "1 epoch", 2),
        ("50k tokens", "1 epoch", 5),
    ],
)
def test_more_checkpoints_to_average_than_are_made(budget: str, validate_every: str, made: int) -> None:
    common: dict[str, Any] = {"budget": budget, "validate_every": validate_every, **warmup(1)}
    assert plan(**common, average=made) == []
    (said,) = plan(**common, average=made + 1)
    assert f"train.average is {made + 1}, but train.budget = " in said
    assert f"make {made} checkpoints: only these are averaged; lower train.average" in said


def test_rates_of_adam_for_sgd() -> None:
    """The peak is factor / sqrt(64 * 100), for factor 1 0.0125."""
    sgd: dict[str, Any] = {"budget": "900 steps", "optimizer": {"kind": "sgd"}}
    low = {"schedule": {"kind": "inverse_sqrt", "warmup": 100, "factor": 0.5}}
    (said,) = plan(**sgd, **low)
    assert 'the learning rate of train.schedule.kind = "inverse_sqrt" is at most 0.0063, made for Adam' in said
    assert 'set train.schedule.kind = "constant" or "budget" and a rate such as 0.1' in said
    assert plan(**sgd, **warmup(100)) == plan(**sgd | {"optimizer": {"kind": "adam"}}, **low) == []
    assert plan(**sgd, schedule={"kind": "constant", "rate": 1e-3}) == [], "chosen by the user"


def test_what_cannot_be_known_or_is_not_asked_for_is_not_warned_about() -> None:
    assert plan(budget="20 min", validate_every="1 epoch", average=1000) == []
    assert plan(budget="2 steps", validate_every="1 step", average=0, **warmup(1)) == []
    (said,) = plan(budget="2 steps", validate_every="5 steps", average=2, **warmup(1))
    assert "make 1 checkpoint: nothing is averaged" in said
