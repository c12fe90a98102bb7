"""Training, from a configuration to a run folder.

Everything random in a step follows from (seed, step) and everything random in an epoch from (seed, epoch): a run that
was killed and resumed ends with the same bytes as one that was not.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.config import Config
from dragoman.data.batching import Batch
from dragoman.data.doctor.precheck import precheck
from dragoman.errors import TrainingError
from dragoman.io.lock import lock_run
from dragoman.io.run_log import Reporter, RunLog
from dragoman.models.model_folder import list_checkpoints, unique_tensors
from dragoman.models.seq2seq import Network
from dragoman.nn.dropout import seed_dropout
from dragoman.training.allocator import keep_freed_memory
from dragoman.training.distributed import DistributedContext
from dragoman.training.loss import Loss, TokenLoss
from dragoman.training.optim import Progress, amount, budget_fraction, build_optimizer, learning_rate
from dragoman.training.plan import plan_warnings, warmup_warning
from dragoman.training.run import TrainingRun, check_files, open_run
from dragoman.training.validate import swapped_weights

__all__ = ["TrainResult", "Trainer", "train"]


@dataclass(frozen=True)
class TrainResult:
    """run: the run folder.  progress: where it ended.  interrupted: by Ctrl-C.  scores: of the last validation."""

    run: Path
    progress: Progress
    interrupted: bool
    scores: dict[str, Any]


def train(
    config: Config, out: str | Path, *, reporter: Reporter | None = None, world: DistributedContext | None = None
) -> TrainResult:
    """Train as `config` says into the run folder `out`, or go on where it stopped.

    A new run begins with the cheap checks of `dragoman doctor`.  Raises `ConfigError`, `DataError`, `UsageError` where
    another process uses `out`, or `TrainingError` when the loss stays not finite or the disk is full.
    """
    reporter = reporter or Reporter()
    world = world or DistributedContext(config.train.device)
    folder = Path(out)
    check_files(config)
    keep_freed_memory()
    with lock_run(folder):
        if config.data.kind == "parallel" and not list_checkpoints(folder):
            precheck(config, reporter.log)
        run = open_run(config, folder, reporter.log)
        run.check_memory(world.device)
        return Trainer(run, world, reporter).train()


class Interrupt:
    """Ctrl-C and a polite kill, taken at the end of a step."""

    def __init__(self) -> None:
        self.asked = False

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        if self.asked:  # asked twice: now
            raise KeyboardInterrupt
        self.asked = True

    def __enter__(self) -> Interrupt:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Trainer:
    """The loop: batches, updates, the log, validations, checkpoints."""

    def __init__(self, run: TrainingRun, world: DistributedContext, reporter: Reporter) -> None:
        self.run, self.world, self.reporter = run, world, reporter
        self.config = run.config.train
        self.model: Network = run.new_model().to(world.device)
        self.wrapped: nn.Module = world.wrap(self.model)
        self.optimizer = build_optimizer(self.config.optimizer, self.model)
        self.ema: dict[str, Tensor] | None = None
        if self.config.ema:
            self.ema = {name: p.clone() for name, p in unique_tensors(self.model).items()}
        self.progress = run.resume(self.model, self.optimizer, self.ema)
        self.validation = run.task.validation()
        self.log = RunLog(run.folder, self.progress.step, saved=lambda: run.last_good())
        self.scores: dict[str, Any] = {}
        self._window = _Window()
        self._planned: tuple[int, list[NDArray[np.int64]]] = (-1, [])

    # ------------------------------------------------------------------------------------------------------ the loop

    def train(self) -> TrainResult:
        """Train until the budget is used up, patience ends, or Ctrl-C; the run folder then holds all there is."""
        self.model.train()
        if self._used() >= 1:
            self.reporter.log(f"{self.run.folder} has used up its {self.config.budget}; a larger train.budget goes on")
        else:
            for warning in plan_warnings(self.config, self.run.task, len(self._plan())):
                self.reporter.log(f"warning: {warning}")
            self.reporter.started(str(self.config.budget), self._used())
        self._clock = time.monotonic() - self.progress.seconds
        try:
            with Interrupt() as interrupt:
                while self._used() < 1 and not self._out_of_patience() and not interrupt.asked:
                    self._epoch(interrupt)
                interrupted = interrupt.asked
                if not interrupted:
                    self._finish()
                elif self.run.needs_last(self.progress):
                    self._save({}, interrupted=True)
        finally:
            self.log.close()
            self.reporter.finished()
        return TrainResult(self.run.folder, self.progress, interrupted, self.scores)

    def _epoch(self, interrupt: Interrupt) -> None:
        """The rest of the epoch that `progress` stands in."""
        progress, plan = self.progress, self._plan()
        while progress.batch < len(plan) and not interrupt.asked:
            numbers = plan[progress.batch : progress.batch + self.config.accumulate]
            batches = [self.read(n, progress.batch + i) for i, n in enumerate(numbers)]
            self.step(batches)
            progress.batch += len(numbers)
            progress.seconds = time.monotonic() - self._clock
            if progress.batch >= len(plan):
                progress.epoch, progress.batch = progress.epoch + 1, 0
            if progress.step % self.config.log_every == 0:
                self._report()
            if self._validation_due():
                self._validate()
            if self._used() >= 1 or self._out_of_patience() or progress.batch == 0:
                return

    def read(self, numbers: NDArray[np.int64], place: int) -> Batch:
        """The examples of these numbers, which are batch `place` of the epoch, on the device."""
        return self.run.task.read(numbers, self.progress.epoch, place).to(self.world.device)

    def step(self, batches: list[Batch]) -> None:
        """One update from one or several batches: their losses summed, divided by all their words."""
        progress = self.progress
        rate = learning_rate(self.config.schedule, self.run.config.model.d_model, progress.step + 1, self._used())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        counts = torch.tensor([sum(b.tgt_tokens for b in batches)], dtype=torch.float64)
        total = float(self.world.sum(counts))
        self.optimizer.zero_grad(set_to_none=True)
        nll = 0.0
        for i, batch in enumerate(batches):
            seed_dropout(self.config.seed, progress.step, i, self.world.rank)
            last = i == len(batches) - 1
            with nullcontext() if last else self.world.no_sync(self.wrapped):
                loss = self._forward(batch)
                (loss.smoothed / total).backward()
            nll += float(loss.nll)
        progress.step += 1
        progress.tokens += sum(b.src_tokens + b.tgt_tokens for b in batches)
        if self._gradients_fit(nll):
            self.optimizer.step()
            self._move_average()
            self._window.add(nll, total, batches, rate)

    def _forward(self, batch: Batch) -> Loss:
        head = TokenLoss(batch.tgt_out, self.config.label_smoothing)
        half = self.config.precision == "bf16"
        with torch.autocast(self.world.device.type, dtype=torch.bfloat16, enabled=half):
            loss: Loss = self.wrapped(batch.src, batch.src_mask, batch.tgt_in, head)
        return loss

    def _gradients_fit(self, nll: float) -> bool:
        """Clip the gradients; False (and counted) where the loss or a gradient is not finite."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if not (math.isfinite(nll) and bool(torch.isfinite(norm))):
            self._count_bad_step()
            return False
        if self.config.clip_norm:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.clip_norm, norm)
        self.progress.bad_in_a_row = 0
        return True

    def _count_bad_step(self) -> None:
        """A step that is not taken; too many in a row end the training."""
        progress = self.progress
        progress.skipped += 1
        progress.bad_in_a_row += 1
        self.reporter.log(
            f"step {progress.step}: the loss or a gradient is not finite; step skipped ({progress.skipped} so far)"
        )
        if progress.bad_in_a_row >= self.config.max_bad_steps:
            raise TrainingError(
                f"{self.run.folder}: loss not finite for {progress.bad_in_a_row} steps in a row, up to step "
                f"{progress.step}. {self.run.last_good()} Lower the learning rate, set train.clip_norm=1, or look at "
                "the data with 'dragoman doctor'."
            )

    def _move_average(self) -> None:
        if self.ema is None:
            return
        # A young average forgets its start faster, as in Adam's bias correction.
        decay = min(self.config.ema, (1 + self.progress.step) / (10 + self.progress.step))
        for name, parameter in unique_tensors(self.model).items():
            self.ema[name].lerp_(parameter, 1 - decay)

    # -------------------------------------------------------------------------------------------- budget and patience

    def _used(self) -> float:
        return budget_fraction(self.config.budget, self.progress, len(self._plan()))

    def _plan(self) -> list[NDArray[np.int64]]:
        """The batches of the epoch that `progress` stands in."""
        epoch = self.progress.epoch
        if self._planned[0] != epoch:
            self._planned = (epoch, self.run.task.epoch(epoch))
        return self._planned[1]

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.stale

    def _validation_due(self) -> bool:
        every = self.config.validate_every
        return amount(every.unit, self.progress, len(self._plan())) - self.progress.validated >= every.amount

    # -------------------------------------------------------------------------------- log, validation and checkpoints

    def _report(self) -> None:
        row = self._window.row(self.progress)
        if row is not None:
            self.log.write(row)
            self.reporter.stepped(row, self._used())

    def _validate(self) -> None:
        """Score the model as it would be saved, save it, and move the pointers."""
        progress = self.progress
        progress.validated = amount(self.config.validate_every.unit, progress, len(self._plan()))
        better = False
        if self.validation is not None:
            with swapped_weights(self.model, self.ema):
                self.scores = self.validation(self.model)
            value = self._value(self.scores)
            better = math.isfinite(value) and (progress.best is None or value > progress.best)
            progress.stale = 0 if better else progress.stale + 1
            if better:
                progress.best, progress.best_step = value, progress.step
            progress.seconds = time.monotonic() - self._clock
            row = {"step": progress.step, "epoch": self._epochs(), "seconds": progress.seconds, **self.scores}
            row["memory_mb"] = round(self.world.peak_memory() / 1e6)
            self.log.write(row)
            self.reporter.validated(row, better)
        self._save(self.scores)
        self._window.restart()

    def _epochs(self) -> float:
        return round(amount("epochs", self.progress, len(self._plan())), 3)

    def _value(self, scores: dict[str, Any]) -> float:
        """The validation metric as more = better."""
        return -float(scores["valid_loss"]) if self.config.metric == "loss" else float(scores[self.config.metric])

    def _save(self, scores: dict[str, Any], interrupted: bool = False) -> None:
        if self.world.is_main:
            self.run.save(self.model, self.optimizer, self.progress, self.ema, scores, interrupted)
        self.world.barrier()

    def _finish(self) -> None:
        """The last validation, and the average of the last checkpoints where it is better than the best."""
        warning = warmup_warning(self.config, self.progress)
        if warning:
            self.reporter.log(f"warning: {warning}")
        if self.run.needs_last(self.progress):
            self._validate()
        if self.config.average < 2 or self.validation is None or not self.world.is_main:
            return
        count = min(self.config.average, len(list_checkpoints(self.run.folder)))
        averaged = self.run.average(count)
        if averaged is None:
            return
        with swapped_weights(self.model, averaged):
            scores = self.validation(self.model)
        better = self.progress.best is None or self._value(scores) > self.progress.best
        self.run.save_average(averaged, self.progress, scores, best=better)
        if better:
            self.scores = scores
        row = {"step": self.progress.step, "seconds": self.progress.seconds, "average": count, **scores}
        self.log.write(row)
        self.reporter.validated(row, better)


class _Window:
    """Sums between two lines of the log."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.nll, self.words, self.tokens, self.rate = 0.0, 0.0, 0, 0.0
        self.since = time.monotonic()

    def add(self, nll: float, words: float, batches: list[Batch], rate: float) -> None:
        self.nll += nll
        self.words += words
        self.tokens += sum(b.src_tokens + b.tgt_tokens for b in batches)
        self.rate = rate

    def row(self, progress: Progress) -> dict[str, Any] | None:
        """A row of the log, or None when no step counted since the last one."""
        if not self.words:
            return None
        row = {
            "step": progress.step,
            "loss": self.nll / self.words,
            "learning_rate": self.rate,
            "tokens_per_second": self.tokens / max(1e-9, time.monotonic() - self.since),
            "seconds": progress.seconds,
        }
        self.restart()
        return row
