"""Progress, speed and remaining time of a training."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dragoman.config import TrainConfig
from dragoman.io.run_log import Status
from dragoman.training.distributed import DistributedContext
from dragoman.training.optim import Progress, amount, budget_fraction

_SPAN, _POINTS = 3.0, 20
"""Speeds are measured over the last 20 points, 3 seconds apart: about a minute."""


class ProgressEstimator:
    """Computes a `Status` from the steps of this process and the duration of earlier validations."""

    def __init__(
        self,
        config: TrainConfig,
        validates: bool,
        rows: Iterable[dict[str, Any]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """rows: the log of the run."""
        self.config, self._validates, self._clock = config, validates, clock
        known = reversed([row.get("validation_seconds") for row in rows])
        self.validation_seconds: float = next(filter(_is_duration, known), 0.0)
        """Duration of the last validation, 0 before the first one."""
        self._paused = 0.0  # seconds without training in this process
        self._points: deque[tuple[float, float, float, int]] = deque(maxlen=_POINTS)

    def begin(self, progress: Progress, done: float) -> None:
        """Start measuring the speed.  done: fraction of the current epoch."""
        self._points.append(self._point(progress, done))

    def pause(self, seconds: float, validation: bool = False) -> None:
        """Exclude seconds from the speed.  validation: whether they are the duration of a validation."""
        self._paused += seconds
        if validation:
            self.validation_seconds = seconds

    def status(self, progress: Progress, done: float, loss: float, targets: float, rate: float) -> Status:
        """Return the status after a step.  done: fraction of the epoch.  loss, targets, rate: see `Status`."""
        now = self._point(progress, done)
        first, last = self._points[0], self._points[-1]
        if now[0] - last[0] >= _SPAN:
            self._points.append(now)
        seconds = max(1e-9, now[0] - first[0])
        used_per_second, due_per_second = ((now[i] - first[i]) / seconds for i in (1, 2))
        budget, every = self.config.budget, self.config.validate_every
        # A budget of time includes validations and saving; other budgets do not.
        of_time = budget.unit == "seconds"
        rest = (
            max(0.0, budget.amount - progress.seconds) if of_time else _divided(max(0.0, 1 - now[1]), used_per_second)
        )
        due = max(0.0, progress.validated + every.amount - now[2])
        due_in = due if every.unit == "seconds" else _divided(due, due_per_second)
        between = 0.0 if of_time else _divided(every.amount, due_per_second) or 0.0
        return Status(
            step=progress.step,
            used=now[1],
            loss=loss,
            targets=targets,
            learning_rate=rate,
            tokens_per_second=(now[3] - first[3]) / seconds,
            warming_up=progress.step < self.config.schedule.warmup,
            seconds_left=None if rest is None else rest + self._validations(rest, due_in, between),
            next_validation=None if rest is None or due_in is None or not self._validates else min(due_in, rest),
            best=None if progress.best is None else abs(progress.best),
            best_step=progress.best_step,
            metric=self.config.metric,
        )

    def _validations(self, rest: float, due_in: float | None, between: float) -> float:
        """Return the seconds of the remaining validations, including those of the last step and of the average.

        between: seconds from one validation to the next; 0 if the budget includes all but these two.
        """
        if not self._validates:
            return 0.0
        count = 1 + (self.config.average > 1)
        if between and due_in is not None and due_in < rest:
            count += math.ceil((rest - due_in) / between - 1e-6)
        return count * self.validation_seconds

    def _point(self, progress: Progress, done: float) -> tuple[float, float, float, int]:
        """Return seconds of training in this process, used budget, amount in the unit of validations, tokens."""
        used = budget_fraction(self.config.budget, progress, done)
        return (
            self._clock() - self._paused,
            used,
            amount(self.config.validate_every.unit, progress, done),
            progress.tokens,
        )


def _is_duration(value: Any) -> bool:
    """Return whether a value of the log, which may be damaged, is a number of seconds."""
    return type(value) in (int, float) and 0 <= value < 1e9


def _divided(amount: float, per_second: float) -> float | None:
    return amount / per_second if per_second > 0 else None


class Window:
    """Sums since the last row of the log."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.restart()

    def restart(self) -> None:
        self.nll, self.targets, self.tokens, self.lost = 0.0, 0.0, 0.0, 0.0
        self.since = time.monotonic()

    def add(self, nll: float, targets: float, tokens: float, rate: float, lost: float = 0.0) -> None:
        """Add a step.  nll: of this process.  targets, tokens: of all processes.  rate: learning rate.

        lost: targets of this process that did not fit into the memory and are not part of nll.
        """
        self.nll += nll
        self.targets += targets
        self.tokens += tokens
        self.lost += lost
        self.rate = rate

    def row(self, progress: Progress, context: DistributedContext) -> dict[str, Any] | None:
        """Return a row of the log and restart, or return None if every step since the last row was skipped.

        All processes call it, because the losses are summed over them.
        """
        if not self.targets:
            return None
        nll, lost = context.sum(torch.tensor([self.nll, self.lost], dtype=torch.float64)).tolist()
        row = {
            "step": progress.step,
            "loss": nll / max(1.0, self.targets - lost),
            "learning_rate": self.rate,
            "tokens_per_second": self.tokens / max(1e-9, time.monotonic() - self.since),
            "seconds": progress.seconds,
        }
        self.restart()
        return row
