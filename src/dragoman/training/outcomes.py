"""What the steps of a training resulted in: read from the device, counted, and judged.

On a CPU, every step is read at once.  On a GPU, reading a value waits until all work that was queued before it is done,
so that the GPU has nothing to do while the next step is prepared; there, steps are read together, some time later.
Whether the weights are changed is decided on the device, so that it does not matter when a step is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.config import TrainConfig
from dragoman.errors import TrainingError
from dragoman.training.memory import Gradients
from dragoman.training.optim import Progress
from dragoman.training.status import Window

INTERVAL = 0.5  # seconds of training between two readings


@dataclass(frozen=True)
class Outcome:
    """Result of a step.

    gradients: of this process.  updated: whether the weights were changed, a boolean.  targets, tokens: of all
    processes.  own: target tokens of this process.  scale: that of the loss in this step, in the next one, and the
    steps since it was changed; None in other precisions than float16.
    """

    step: int
    gradients: Gradients
    updated: bool | Tensor
    targets: float
    tokens: float
    own: int
    rate: float
    scale: tuple[Tensor, Tensor, Tensor] | None = None

    def values(self) -> list[float | Tensor]:
        return [self.gradients.nll, self.updated, *(self.scale or ())]


class Outcomes:
    """Steps in the order in which they were made.

    `read` adds them to the progress and to the window of the log; `failure` makes the error after too many bad steps in
    a row from a description and, unless the usual one applies, advice.  loss: nats per target token of those that were
    read last, and their target tokens, both of this process; NaN and 0 if the weights were not changed.
    """

    def __init__(
        self,
        config: TrainConfig,
        progress: Progress,
        window: Window,
        warn: Callable[[str], None],
        failure: Callable[..., TrainingError],
    ) -> None:
        self._config, self._progress, self._window = config, progress, window
        self._warn, self._failure = warn, failure
        self._waiting: list[Outcome] = []
        self._read_at = -math.inf
        self.loss = (math.nan, 0.0)

    def add(self, outcome: Outcome, at_once: bool = True) -> None:
        """Add a step.  at_once: whether it is read now."""
        self._waiting.append(outcome)
        if at_once:
            self.read()

    def counts(self) -> dict[str, int]:
        """Return the counts of a run that are not 0, for a row of the log."""
        names = ("skipped", "overflows", "split_batches", "skipped_pairs")
        return {name: count for name in names if (count := getattr(self._progress, name))}

    def summarize(self, log: Callable[[str], None]) -> None:
        """Report what the user should know when the training ends."""
        progress = self._progress
        if progress.split_batches:
            log(
                f"{progress.split_batches:,} batches did not fit into the memory and were split; training is faster "
                "with a smaller train.batch_tokens and a larger train.accumulate"
            )
        if progress.skipped_pairs:
            log(f"{progress.skipped_pairs:,} pairs did not fit into the memory by themselves and were skipped")
        if progress.overflows:
            log(
                f"{progress.overflows:,} of {progress.step:,} steps were skipped because a gradient exceeded the range "
                "of float16, which is normal if they are few"
            )

    def is_due(self) -> bool:
        """Return whether the last reading was some time ago; all processes have the same answer."""
        return abs(self._progress.seconds - self._read_at) >= INTERVAL

    def read(self) -> None:
        """Read all steps.  Raises TrainingError after too many bad steps in a row."""
        self._read_at = self._progress.seconds
        if not self._waiting:
            return
        outcomes, self._waiting = self._waiting, []
        nll, own = 0.0, 0
        for outcome, values in zip(outcomes, _read(outcomes), strict=True):
            if self._count(outcome, values):
                nll, own = nll + values[0], own + outcome.own - outcome.gradients.lost
        self.loss = (nll / max(1, own), float(own)) if own else (math.nan, 0.0)

    def _count(self, outcome: Outcome, values: list[float]) -> bool:
        """Count a step; return whether it changed the weights."""
        progress, (nll, updated, *scale) = self._progress, values
        self._report_memory(outcome)
        if scale:
            progress.loss_scale, progress.scale_steps = scale[1], int(scale[2])
        if updated:
            progress.bad_in_a_row = 0
            lost = outcome.gradients.lost
            self._window.add(nll, outcome.targets, outcome.tokens, outcome.rate, lost)
        elif scale and scale[0] > 1:
            progress.overflows += 1
        else:
            self._count_bad_step(outcome)
        return bool(updated)

    def _count_bad_step(self, outcome: Outcome) -> None:
        progress = self._progress
        progress.skipped += 1
        progress.bad_in_a_row += 1
        nothing_fits = bool(outcome.gradients.skipped) and outcome.gradients.lost == outcome.own
        bad, step, skipped = progress.bad_in_a_row, outcome.step, progress.skipped
        ends = bad >= self._config.max_bad_steps
        if nothing_fits:
            self._warn(f"step {step}: no pair fits into the memory; step skipped ({skipped} so far)")
            if ends:
                what = f"no pair fitted into the memory for {bad} steps in a row, up to step {step}."
                raise self._failure(what, "Reduce the sizes of the model.")
            return
        self._warn(f"step {step}: the loss or a gradient is not finite; step skipped ({skipped} so far)")
        if ends:
            raise self._failure(f"the loss was not finite for {bad} steps in a row, up to step {step}.")

    def count_memory(self, split: int, skipped: int) -> None:
        """Count batches that were split and pairs that were skipped, in all processes; warn about the first one."""
        if split and not self._progress.split_batches:
            self._warn(
                "out of memory: a batch was split, and the gradients of the step were computed again, which takes "
                "longer; in a new run, reduce train.batch_tokens (train.accumulate compensates for it)"
            )
        self._progress.split_batches += split
        self._progress.skipped_pairs += skipped

    def _report_memory(self, outcome: Outcome) -> None:
        """Warn about every pair of this process that does not fit."""
        for batch in outcome.gradients.skipped:
            src, tgt = batch.src_tokens, batch.tgt_tokens
            self._warn(
                f"step {outcome.step}: out of memory for a single pair of {src:,} source and {tgt:,} target tokens; "
                "pair skipped. Reduce the longest examples (data.max_tokens) or the sizes of the model"
            )


def _read(outcomes: list[Outcome]) -> list[list[float]]:
    """Return the values of the outcomes, by one transfer from the device."""
    rows = [outcome.values() for outcome in outcomes]
    device = next((v.device for row in rows for v in row if isinstance(v, Tensor)), None)
    if device is None or device.type == "cpu":
        return [[float(value) for value in row] for row in rows]
    on_device = [[torch.as_tensor(v, device=device).double() for v in row] for row in rows]
    found: list[list[float]] = torch.stack([torch.stack(row) for row in on_device]).tolist()
    return found
