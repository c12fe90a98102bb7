"""Optimizer, learning rate schedule and the progress of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from dragoman.config import (
    BudgetSchedule,
    ConstantSchedule,
    CosineSchedule,
    Duration,
    InverseSqrtSchedule,
    LinearSchedule,
    MuonConfig,
    Schedule,
    SGDConfig,
    TrainConfig,
    WarmupStableDecaySchedule,
)
from dragoman.config import Optimizer as OptimizerConfig
from dragoman.training.optimizers import SGD, Adam, MuonWithAdamW, Optimizer


@dataclass
class Progress:
    """State of a run; with the weights and the optimizer's moments, all that is needed to resume it.

    step: updates, including skipped ones.  epoch, block, batch: position in the data (see `BatchStream`).  tokens:
    source + target, without padding.  seconds: training, validation and saving, over all sessions.  stale: validations
    since the best one.  skipped, bad_in_a_row: steps with a loss or gradient that is not finite.  validated: amount at
    the last validation.
    overflows: steps skipped because a gradient exceeded the range of float16, not included in `skipped`.  loss_scale,
    scale_steps: state of `LossScale`; 0 before the first step, and in other precisions.  split_batches, skipped_pairs:
    batches that did not fit into the memory, and pairs or rows that did not fit by themselves, in all processes.
    grid: whether the batches of the run are planned for few shapes, decided at its start.
    """

    step: int = 0
    epoch: int = 0
    block: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    skipped: int = 0
    bad_in_a_row: int = 0
    validated: float = 0.0
    overflows: int = 0
    loss_scale: float = 0.0
    scale_steps: int = 0
    split_batches: int = 0
    skipped_pairs: int = 0
    grid: bool = False


def amount(unit: str, progress: Progress, done: float) -> float:
    """Return the progress in a unit of `Duration`.  done: fraction of the current epoch."""
    if unit == "epochs":
        return progress.epoch + done
    return float({"steps": progress.step, "tokens": progress.tokens, "seconds": progress.seconds}[unit])


def budget_fraction(budget: Duration, progress: Progress, done: float) -> float:
    """Return the used fraction of the budget: 0 at the start, 1 or more at the end.  done: see `amount`."""
    return amount(budget.unit, progress, done) / budget.amount


def expected_share(config: TrainConfig, progress: Progress) -> float:
    """Return the tokens processed, as a fraction of those expected in the time; 1 for other budgets than a time."""
    expected = config.expected_speed * progress.seconds
    return progress.tokens / expected if expected and config.budget.unit == "seconds" else 1.0


def learning_rate(schedule: Schedule, d_model: int, step: int, used: float) -> float:
    """Return the learning rate of update `step` (from 1) after the fraction `used` of the budget."""
    warm = min(1.0, step / schedule.warmup)
    if isinstance(schedule, InverseSqrtSchedule):
        # Vaswani et al. 2017, equation 3.
        return float(schedule.factor * d_model**-0.5 * min(step**-0.5, step * schedule.warmup**-1.5))
    shape: str
    match schedule:
        case ConstantSchedule():
            return schedule.rate * warm
        case BudgetSchedule():
            decay, shape, floor = schedule.decay, schedule.shape, 0.0
        case WarmupStableDecaySchedule():
            decay, shape, floor = schedule.decay, "sqrt", schedule.floor
        case LinearSchedule() | CosineSchedule():
            decay, shape, floor = 1.0, schedule.kind, schedule.floor
    left = min(1.0, max(0.0, (1 - used) / decay))  # falls from 1 to 0 in the last part of the budget
    if shape == "cosine":
        left = 0.5 - 0.5 * math.cos(math.pi * left)
    elif shape == "sqrt":
        left = 1 - math.sqrt(1 - left)
    return float(schedule.peak * warm * (floor + (1 - floor) * left))


def state_size(config: OptimizerConfig) -> int:
    """Return how many values the optimizer stores per parameter."""
    if isinstance(config, SGDConfig):
        return 1 if config.momentum else 0
    return 2  # the moments of Adam; Muon stores one value for the parameters of its matrices


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> Optimizer:
    """Return the optimizer of a model; weight decay is for matrices only.

    AdamW and Muon subtract rate * decay * weight from the weight; SGD adds decay * weight to the gradient (L2
    regularization).
    """
    if isinstance(config, MuonConfig):
        return MuonWithAdamW(config, model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return SGD(config, parameters) if isinstance(config, SGDConfig) else Adam(config, parameters)
