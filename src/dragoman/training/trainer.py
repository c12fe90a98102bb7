"""The training loop.

All randomness of a step is a function of (seed, step), and all randomness of an epoch a function of (seed, epoch): a
run that was killed and resumed ends with the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.config import Config, Duration
from dragoman.data.batching import Batch
from dragoman.data.doctor.precheck import precheck
from dragoman.errors import TrainingError, UsageError
from dragoman.io.lock import lock_run
from dragoman.io.run_log import Reporter, RunLog, read_log
from dragoman.models.model_folder import list_checkpoints, unique_tensors
from dragoman.models.seq2seq import Network
from dragoman.nn.dropout import seed_dropout
from dragoman.training.allocator import keep_freed_memory
from dragoman.training.distributed import DistributedContext
from dragoman.training.loss import Loss, TokenLoss
from dragoman.training.optim import Progress, amount, budget_fraction, build_optimizer, learning_rate
from dragoman.training.plan import forecast_of, forecast_problems, plan_warnings, warmup_warning
from dragoman.training.run import TrainingRun, check_files, open_run, validated_checkpoints
from dragoman.training.status import ProgressEstimator, Window
from dragoman.training.tasks.translation import TranslationValidation
from dragoman.training.threads import ThreadControl
from dragoman.training.validation import swapped_weights

__all__ = ["TrainResult", "Trainer", "train"]

_MAX_SAVING_SHARE = 0.05  # fraction of train.save_every above which the duration of saving gets a warning
_ADVICE = "Lower the learning rate, set train.clip_norm=1, or check the data with 'dragoman doctor'."


@dataclass(frozen=True)
class TrainResult:
    """run: the run folder.  progress, epochs: at the end.  interrupted: by a signal.  scores: last validation."""

    run: Path
    progress: Progress
    epochs: float
    interrupted: bool
    scores: dict[str, Any]


def train(
    config: Config, out: str | Path, *, reporter: Reporter | None = None, context: DistributedContext | None = None
) -> TrainResult:
    """Train a model in the run folder `out`, or resume the run in it.

    The data of a new run are checked as by `dragoman doctor` first.  Raises ConfigError, DataError, UsageError if
    another process uses `out`, and TrainingError if the loss is not finite for too many steps or the disk is full.
    """
    if not isinstance(config, Config):
        raise UsageError(f"config: {config!r:.60} is a {type(config).__name__}; accepted: the result of load_config")
    reporter = reporter or Reporter()
    context = context or DistributedContext(config.train.device)
    folder = Path(out)
    check_files(config)
    keep_freed_memory()
    with lock_run(folder):
        if config.data.kind == "parallel" and not list_checkpoints(folder):
            reporter.phase("checking the data")
            precheck(config, reporter.warn)
        run = open_run(config, folder, reporter)
        run.check_memory(context.device)
        reporter.phase("building the model")
        return Trainer(run, context, reporter).train()


class Interrupt:
    """Records SIGINT and SIGTERM, so that training stops after the current step; a second signal stops at once."""

    def __init__(self) -> None:
        self.requested = False

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __enter__(self) -> Interrupt:
        in_main_thread = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if in_main_thread else ()
        self._previous = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class Trainer:
    """Updates, logging, validation and checkpoints of one run."""

    def __init__(self, run: TrainingRun, context: DistributedContext, reporter: Reporter) -> None:
        self.run, self.context, self.reporter = run, context, reporter
        self.config = run.config.train
        self.model: Network = run.new_model().to(context.device)
        self.wrapped: nn.Module = context.wrap(self.model)
        self.optimizer = build_optimizer(self.config.optimizer, self.model)
        self.ema: dict[str, Tensor] | None = None
        if self.config.ema:
            self.ema = {name: p.clone() for name, p in unique_tensors(self.model).items()}
        self.progress = run.resume(self.model, self.optimizer, self.ema)
        self.validation = run.task.validation()
        self.log = RunLog(run.folder, self.progress.step, run.is_validated(self.progress), run.last_good)
        self.threads = ThreadControl(run.folder, self.config, context.device, reporter)
        self.estimator = ProgressEstimator(self.config, self.validation is not None, read_log(run.folder))
        self.scores: dict[str, Any] = {}
        self._window = Window()
        self._step_loss = (math.nan, 0.0)  # nats per target token of the last step, target tokens
        self._planned: tuple[int, list[NDArray[np.int64]]] = (-1, [])
        self._saved = 0.0  # amount of train.save_every at the last checkpoint
        self._slow_save_reported = False

    def train(self) -> TrainResult:
        """Train until the budget or the patience is exhausted, or a signal arrives, and save the final state."""
        self.model.train()
        # The unit of validate_every may have changed since the last validation.
        self.progress.validated = min(self.progress.validated, self._amount(self.config.validate_every))
        self._saved = self._amount(self.config.save_every)
        trains = self._used() < 1
        self.threads.start(self.trial if trains else None, resumed=self.progress.step > 0)
        if not trains:
            exhausted = f"the budget of {self.config.budget} is used up; raise train.budget to continue"
            self.reporter.log(f"{self.run.folder}: {exhausted}")
        else:
            for warning in self._warnings():
                self.reporter.warn(warning)
            self.reporter.started(str(self.config.budget), self._used())
        self._clock = time.monotonic() - self.progress.seconds
        self.estimator.begin(self.progress, len(self._plan()))
        complete = False
        try:
            with Interrupt() as interrupt:
                if trains and self._is_due(self.config.validate_every, self.progress.validated):
                    self._validate()  # the run was killed during this validation
                while self._used() < 1 and not self._out_of_patience() and not interrupt.requested:
                    self._epoch(interrupt)
                interrupted = interrupt.requested
                if not interrupted:
                    self._finish()
                    self._check_usable()
                elif not self.run.is_validated(self.progress):
                    self._save({}, validated=False)
            complete = not interrupted
        finally:
            self.log.close()
            self.threads.restore()
            self.reporter.finished(complete)
        return TrainResult(self.run.folder, self.progress, self._epochs(), interrupted, self.scores)

    def _warnings(self) -> Iterator[str]:
        """Yield warnings about the configuration that do not depend on the speed of the machine."""
        task, batches = self.run.task, len(self._plan())
        yield from plan_warnings(self.config, task, batches)
        if forecast := forecast_of(self.config, task, batches, self.model.parameter_count()):
            yield from map("; ".join, forecast_problems(self.run.config, forecast, self.run.parameters_of))

    def _epoch(self, interrupt: Interrupt) -> None:
        """Train until the epoch ends or training has to stop."""
        progress, plan = self.progress, self._plan()
        while progress.batch < len(plan) and not interrupt.requested:
            group = plan[progress.batch : progress.batch + self.config.accumulate]
            self.step([self.read(indices, progress.batch + i) for i, indices in enumerate(group)])
            progress.batch += len(group)
            progress.seconds = time.monotonic() - self._clock
            if progress.batch >= len(plan):
                progress.epoch, progress.batch = progress.epoch + 1, 0
            status = self.estimator.status(progress, len(self._plan()), *self._step_loss, self._window.rate)
            self.reporter.progressed(status)
            if progress.step % self.config.log_every == 0 and (row := self._window.row(progress)):
                self.log.write(row)
                self.reporter.stepped(row, self._used())
            if self._is_due(self.config.validate_every, progress.validated):
                self._validate()
            elif self._is_due(self.config.save_every, self._saved):
                self._save_between()
            self.threads.recheck(self.trial)
            if self._used() >= 1 or self._out_of_patience() or progress.batch == 0:
                return

    def read(self, indices: NDArray[np.int64], batch: int) -> Batch:
        """Return the examples with these indices, which are batch number `batch` of the epoch, on the device."""
        return self.run.task.read(indices, self.progress.epoch, batch).to(self.context.device)

    def step(self, batches: list[Batch]) -> None:
        """Update the weights once; the loss is the sum over all batches divided by their number of target tokens."""
        progress = self.progress
        rate = learning_rate(self.config.schedule, self.run.config.model.d_model, progress.step + 1, self._used())
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        counts = torch.tensor([sum(b.tgt_tokens for b in batches)], dtype=torch.float64)
        total = float(self.context.sum(counts))
        self.optimizer.zero_grad(set_to_none=True)
        nll, self._step_loss = 0.0, (math.nan, 0.0)
        for i, batch in enumerate(batches):
            seed_dropout(self.config.seed, progress.step, i, self.context.rank)
            last = i == len(batches) - 1
            with nullcontext() if last else self.context.no_sync(self.wrapped):
                loss = self._forward(batch)
                (loss.smoothed / total).backward()
            nll += float(loss.nll)
        progress.step += 1
        progress.tokens += sum(b.src_tokens + b.tgt_tokens for b in batches)
        if self._clip_gradients(nll):
            self.optimizer.step()
            self._update_ema()
            self._window.add(nll, total, batches, rate)
            self._step_loss = nll / total, total

    def trial(self) -> None:
        """Compute and discard the gradients of the next batch, to measure the speed of training."""
        batch = self.read(self._plan()[self.progress.batch], self.progress.batch)
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]  # running statistics of BatchNorm
        seed_dropout(self.config.seed, self.progress.step, 0, self.context.rank)
        self._forward(batch).smoothed.backward()
        self.optimizer.zero_grad(set_to_none=True)
        for buffer, value in kept:
            buffer.copy_(value)

    def _forward(self, batch: Batch) -> Loss:
        head = TokenLoss(batch.tgt_out, self.config.label_smoothing)
        bf16 = self.config.precision == "bf16"
        with torch.autocast(self.context.device.type, dtype=torch.bfloat16, enabled=bf16):
            loss: Loss = self.wrapped(batch.src, batch.src_mask, batch.tgt_in, head)
        return loss

    def _clip_gradients(self, nll: float) -> bool:
        """Clip the gradients; if the loss or a gradient is not finite, count the step as skipped and return False."""
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
        progress = self.progress
        progress.skipped += 1
        progress.bad_in_a_row += 1
        self.reporter.warn(
            f"step {progress.step}: the loss or a gradient is not finite; step skipped ({progress.skipped} so far)"
        )
        if progress.bad_in_a_row >= self.config.max_bad_steps:
            raise TrainingError(
                f"{self.run.folder}: the loss was not finite for {progress.bad_in_a_row} steps in a row, up to step "
                f"{progress.step}. {self.run.last_good()} {_ADVICE}"
            )

    def _check_usable(self) -> None:
        """Raise TrainingError if no validation of the training had a finite result."""
        if self.validation is not None and self.context.is_main and self.progress.best is None:
            raise TrainingError(
                f"{self.run.folder}: the training has ended at step {self.progress.step}, but no validation had a "
                f"finite result ({self.progress.skipped} steps were skipped), so the model cannot be used. {_ADVICE}"
            )

    def _update_ema(self) -> None:
        if self.ema is None:
            return
        # A lower decay during the first steps, so that the initial weights are forgotten sooner.
        decay = min(self.config.ema, (1 + self.progress.step) / (10 + self.progress.step))
        for name, parameter in unique_tensors(self.model).items():
            self.ema[name].lerp_(parameter, 1 - decay)

    def _used(self) -> float:
        return budget_fraction(self.config.budget, self.progress, len(self._plan()))

    def _plan(self) -> list[NDArray[np.int64]]:
        """Return the batches of the current epoch."""
        epoch = self.progress.epoch
        if self._planned[0] != epoch:
            self._planned = (epoch, self.run.task.epoch(epoch))
        return self._planned[1]

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.progress.stale

    def _epochs(self) -> float:
        return amount("epochs", self.progress, len(self._plan()))

    def _amount(self, every: Duration) -> float:
        """Return the progress in the unit of the duration."""
        return amount(every.unit, self.progress, len(self._plan()))

    def _is_due(self, every: Duration, last: float) -> bool:
        return self._amount(every) - last >= every.amount

    def _validate(self) -> None:
        """Score the model with the weights that are saved, write a checkpoint and update the pointers."""
        if self.validation is not None and self._may_lose_time():
            self._save_between()
        progress, began, better = self.progress, time.monotonic(), False
        progress.validated = self._amount(self.config.validate_every)
        if self.validation is not None:
            self.reporter.phase("validation")
            with swapped_weights(self.model, self.ema):
                self.scores = self.validation(self.model)
            value = self._value(self.scores)
            better = math.isfinite(value) and (progress.best is None or value > progress.best)
            progress.stale = 0 if better else progress.stale + 1
            if better:
                progress.best, progress.best_step = value, progress.step
            progress.seconds = time.monotonic() - self._clock
            row = {"step": progress.step, "epoch": round(self._epochs(), 3), "seconds": progress.seconds, **self.scores}
            row["memory_mb"] = round(self.context.peak_memory() / 1e6)
            row["validation_seconds"] = round(time.monotonic() - began, 3)
            self.log.write(row)
            self.reporter.validated(row, better)
            if isinstance(self.validation, TranslationValidation) and self.validation.sample is not None:
                self.reporter.translated(self.validation.sample)
        self._save(self.scores)
        self.estimator.pause(time.monotonic() - began, validation=True)
        self._window.restart()

    def _may_lose_time(self) -> bool:
        """Return whether a run that is killed during a validation could lose more than train.save_every."""
        every, since = self.config.save_every, self._amount(self.config.save_every) - self._saved
        expected = self.estimator.validation_seconds or math.inf
        return every.unit == "seconds" and since > 0 and since + expected > every.amount

    def _value(self, scores: dict[str, Any]) -> float:
        """Return the validation metric, negated if lower is better."""
        return -float(scores["valid_loss"]) if self.config.metric == "loss" else float(scores[self.config.metric])

    def _save_between(self) -> None:
        """Save a checkpoint without a validation; warn once if saving takes long."""
        every, began = self.config.save_every, time.monotonic()
        self._save({}, validated=False)
        seconds = time.monotonic() - began
        self.estimator.pause(seconds)
        self._window.since += seconds
        if every.unit == "seconds" and seconds > _MAX_SAVING_SHARE * every.amount and not self._slow_save_reported:
            self._slow_save_reported = True
            self.reporter.warn(
                f"saving a checkpoint took {seconds:.1f} s, more than {_MAX_SAVING_SHARE:.0%} of train.save_every "
                f"= {str(every)!r}; raise it to save less often"
            )

    def _save(self, scores: dict[str, Any], validated: bool = True) -> None:
        self._saved = self._amount(self.config.save_every)
        if self.context.is_main:
            self.run.save(self.model, self.optimizer, self.progress, self.ema, scores, validated)
        self.context.barrier()

    def _finish(self) -> None:
        """Validate again, and score the average of the last checkpoints, which becomes the best if it is better."""
        if self._out_of_patience() and self._used() < 1:
            self.reporter.log(
                f"stopped early, with {self._used():.0%} of the budget used: no improvement in {self.progress.stale} "
                f"validations (train.patience = {self.config.patience})"
            )
        if warning := warmup_warning(self.config, self.progress):
            self.reporter.warn(warning)
        if not self.run.is_validated(self.progress):
            self._validate()
        if self.config.average < 2 or self.validation is None or not self.context.is_main:
            return
        count = min(self.config.average, len(validated_checkpoints(self.run.folder)))
        self.reporter.phase(f"validation of the average of the last {count} checkpoints")
        averaged = self.run.average(count)
        if averaged is None:
            return
        with swapped_weights(self.model, averaged):
            scores = self.validation(self.model)
        best = self.progress.best
        better = best is None or self._value(scores) > best
        self.run.save_average(averaged, self.progress, scores, best=better)
        if better:
            self.scores = scores
        row = {"step": self.progress.step, "seconds": self.progress.seconds, "average": count, **scores}
        self.log.write(row)
        self.reporter.validated(row, better)
        if best is not None:
            than = f"{'' if better else 'not '}better than step {self.progress.best_step:,}"
            used = "the average" if better else f"step {self.progress.best_step:,}"
            values = f"{self.config.metric} {abs(self._value(scores)):.2f} and {abs(best):.2f}"
            self.reporter.log(f"the average of the last {count} checkpoints is {than} ({values}); using {used}")
