"""Warnings about settings with which a run learns less than it could."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dragoman.config import Duration, TrainConfig
from dragoman.training.optim import Progress, learning_rate
from dragoman.training.tasks.task import Task

__all__ = ["plan_warnings", "warmup_warning"]

_LOW_FOR_SGD = 0.01
"""Usual rates of SGD without momentum are 0.1 to 30 for networks of text (Merity et al. 2018)."""


def plan_warnings(config: TrainConfig, task: Task, batches_per_epoch: int) -> Iterator[str]:
    """Yield warnings about warm-up, averaging and rates of SGD; for budgets of time see `warmup_warning`."""
    steps = _steps(config.budget, config, task, batches_per_epoch)
    warmup = config.schedule.warmup
    if steps is not None and warmup > steps:
        yield (
            f"train.schedule.warmup is {warmup:,} steps, but train.budget = {str(config.budget)!r} is about {steps:,} "
            "steps: the learning rate never reaches its peak; lower the warm-up (to a tenth of the budget, for "
            "example), or raise the budget"
        )
    if config.optimizer.kind == "sgd" and config.schedule.kind == "inverse_sqrt":
        peak = learning_rate(config.schedule, task.config.model.d_model, warmup, used=0.0)
        if peak < _LOW_FOR_SGD:
            yield (
                f'train.optimizer.kind is "sgd", but the learning rate of train.schedule.kind = "inverse_sqrt" is at '
                f'most {peak:.2g}, made for Adam: SGD learns little with it; set train.schedule.kind = "constant" '
                'or "budget" and a rate such as 0.1, or raise train.schedule.factor'
            )
    made = _checkpoints(config, task, batches_per_epoch)
    if made is not None and config.average > 1 and made < config.average:
        yield (
            f"train.average is {config.average}, but train.budget = {str(config.budget)!r} and train.validate_every = "
            f"{str(config.validate_every)!r} make {made} checkpoint{'s' * (made != 1)}: "
            f"{'only these are averaged' if made > 1 else 'nothing is averaged'}; lower train.average, or validate "
            "more often"
        )


def warmup_warning(config: TrainConfig, progress: Progress) -> str | None:
    """Return the warning about a warm-up that was longer than a budget of time."""
    if config.budget.unit != "seconds" or progress.step >= config.schedule.warmup:
        return None
    return (
        f"training ended after {progress.step:,} of the {config.schedule.warmup:,} steps of train.schedule.warmup: the "
        "learning rate never reached its peak; lower the warm-up, or raise the budget"
    )


def _steps(duration: Duration, config: TrainConfig, task: Task, batches_per_epoch: int) -> int | None:
    """Return a duration in steps, rounded up; None for seconds."""
    steps_per_epoch = math.ceil(batches_per_epoch / config.accumulate)
    match duration.unit:
        case "steps":
            return math.ceil(duration.amount)
        case "epochs":
            return math.ceil(duration.amount * steps_per_epoch)
        case "tokens":
            return math.ceil(duration.amount / task.tokens() * steps_per_epoch)
    return None


def _checkpoints(config: TrainConfig, task: Task, batches_per_epoch: int) -> int | None:
    """Return the number of checkpoints within the budget, including the last one; None if it cannot be known."""
    budget, every = config.budget, config.validate_every
    if budget.unit == every.unit:
        return math.ceil(budget.amount / every.amount)
    total, between = (_steps(duration, config, task, batches_per_epoch) for duration in (budget, every))
    return None if total is None or between is None else math.ceil(total / between)
