"""`[train]` and `[search]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dragoman.config.section import Duration, DurationField, Section

__all__ = [
    "AdamConfig",
    "AdamWConfig",
    "BudgetSchedule",
    "InverseSqrtSchedule",
    "Optimizer",
    "Schedule",
    "SearchConfig",
    "TrainConfig",
]


class AdamConfig(Section):
    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.98, ge=0, lt=1)
    eps: float = Field(1e-9, gt=0)


class AdamWConfig(Section):
    kind: Literal["adamw"] = "adamw"
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.98, ge=0, lt=1)
    eps: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.01, ge=0)


class InverseSqrtSchedule(Section):
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, equation 3)."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    factor: float = Field(1.0, gt=0)
    warmup: int = Field(4000, ge=1, description="steps")


class BudgetSchedule(Section):
    """Warm up, hold at `peak`, and come down to zero exactly where the budget ends."""

    kind: Literal["budget"] = "budget"
    peak: float = Field(3e-3, gt=0)
    warmup: int = Field(100, ge=1, description="steps")
    decay: float = Field(0.5, gt=0, le=1, description="the part of the budget in which the rate comes down")
    shape: Literal["linear", "cosine"] = "linear"


Optimizer = Annotated[AdamConfig | AdamWConfig, Field(discriminator="kind")]
Schedule = Annotated[InverseSqrtSchedule | BudgetSchedule, Field(discriminator="kind")]


class TrainConfig(Section):
    budget: DurationField = Duration(amount=20 * 60, unit="seconds")
    batch_tokens: int = Field(4096, ge=16, description="source + target tokens of a batch, padding included")
    accumulate: int = Field(1, ge=1, description="batches an update is made from")
    optimizer: Optimizer = AdamConfig()
    schedule: Schedule = InverseSqrtSchedule()
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    clip_norm: float = Field(0.0, ge=0, description="largest gradient norm; 0 = no clipping")
    precision: Literal["float32", "bf16"] = "float32"
    seed: int = Field(1, ge=0)
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the moving average of the weights; 0 = none")
    log_every: int = Field(20, ge=1, description="steps")
    validate_every: DurationField = Duration(amount=1, unit="epochs")
    validate_sentences: int = Field(1000, ge=1, description="sentences decoded for BLEU and chrF")
    metric: Literal["bleu", "chrf", "loss", "accuracy", "f1"] = "loss"
    patience: int = Field(0, ge=0, description="validations without a better score before stopping; 0 = never")
    keep: int = Field(5, ge=1, description="checkpoints kept besides the best")
    average: int = Field(0, ge=0, description="average that many last checkpoints at the end, if that is better")
    max_bad_steps: int = Field(20, ge=1, description="steps in a row with a loss that is not finite before stopping")
    device: str = "auto"


class SearchConfig(Section):
    beam: int = Field(4, ge=1, le=4096)
    alpha: float = Field(0.6, ge=0, le=10, description="length penalty ((5 + length) / 6) ** alpha (Wu et al. 2016)")
    max_extra: int = Field(50, ge=1, le=10_000, description="output tokens at most: source + this")
    min_length: int = Field(0, ge=0, le=10_000)
    no_repeat_ngram: int = Field(0, ge=0, le=10_000)
