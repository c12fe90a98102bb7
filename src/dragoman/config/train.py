"""`[train]` and `[search]`: training and decoding."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dragoman.config import limits
from dragoman.config.section import AcceptStored, Duration, DurationField, Section

__all__ = [
    "AdamConfig",
    "AdamWConfig",
    "BudgetSchedule",
    "ConstantSchedule",
    "InverseSqrtSchedule",
    "Optimizer",
    "SGDConfig",
    "Schedule",
    "SearchConfig",
    "TrainConfig",
]


Device = Annotated[str, Field(pattern="^(auto|cpu|(cuda|mps|xpu|hpu)(:[0-9]{1,3})?)$"), AcceptStored]


class AdamConfig(Section):
    kind: Literal["adam"] = "adam"
    beta1: limits.Beta = 0.9
    beta2: limits.Beta = 0.98
    eps: limits.AdamEpsilon = 1e-9


class AdamWConfig(Section):
    kind: Literal["adamw"] = "adamw"
    beta1: limits.Beta = 0.9
    beta2: limits.Beta = 0.98
    eps: limits.AdamEpsilon = 1e-9
    weight_decay: limits.WeightDecay = 0.01


class SGDConfig(Section):
    """Gradient descent: g = gradient + weight_decay * w, v = momentum * v + g, w = w - learning rate * v.

    As in torch.optim.SGD, the decay is part of the gradient (L2 regularization).  Without momentum v = g.
    """

    kind: Literal["sgd"] = "sgd"
    momentum: limits.Beta = 0.0
    weight_decay: limits.WeightDecay = Field(0.0, description="L2 regularization of the matrices; 0 = none")


class InverseSqrtSchedule(Section):
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, equation 3)."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    factor: limits.ScheduleFactor = 1.0
    warmup: limits.Steps = Field(4000, description="steps")


class BudgetSchedule(Section):
    """Linear warm-up, constant at `peak`, then decay to zero at the end of the budget."""

    kind: Literal["budget"] = "budget"
    peak: limits.PeakRate = 3e-3
    warmup: limits.Steps = Field(100, description="steps")
    decay: limits.Decay = Field(0.5, description="fraction of the budget in which the rate decays")
    shape: Literal["linear", "cosine"] = "linear"


class ConstantSchedule(Section):
    """Linear warm-up, then constant at `rate`."""

    kind: Literal["constant"] = "constant"
    rate: limits.PeakRate = 1e-3
    warmup: limits.Steps = Field(1, description="steps; 1 = `rate` from the first step")


Optimizer = Annotated[AdamConfig | AdamWConfig | SGDConfig, Field(discriminator="kind")]
Schedule = Annotated[InverseSqrtSchedule | BudgetSchedule | ConstantSchedule, Field(discriminator="kind")]


class TrainConfig(Section):
    budget: DurationField = Duration(amount=20 * 60, unit="seconds")
    batch_tokens: limits.TokensPerBatch = Field(4096, description="source + target tokens per batch, with padding")
    accumulate: limits.Batches = Field(1, description="batches per update")
    optimizer: Optimizer = AdamConfig()
    schedule: Schedule = InverseSqrtSchedule()
    label_smoothing: limits.Dropout = 0.1
    clip_norm: limits.GradientNorm = Field(0.0, description="maximum gradient norm; 0 = no clipping")
    precision: Literal["float32", "bf16"] = "float32"
    seed: limits.Seed = 1
    ema: limits.Beta = Field(0.0, description="decay of the moving average of the weights; 0 = none")
    log_every: limits.Interval = Field(20, description="steps")
    validate_every: DurationField = Duration(amount=1, unit="epochs")
    save_every: DurationField = Field(
        Duration(amount=5 * 60, unit="seconds"),
        description="interval of checkpoints between validations: at most this is lost if the training is killed",
        examples=["2000 steps"],
    )
    validate_sentences: limits.Sentences = Field(1000, description="sentences decoded per validation")
    metric: Literal["bleu", "chrf", "loss", "accuracy", "f1"] = "loss"
    patience: limits.OptionalCount = Field(0, description="validations without improvement before stopping; 0 = off")
    keep: limits.Checkpoints = Field(5, description="recent checkpoints to keep, in addition to the best")
    average: limits.OptionalCount = Field(0, description="last checkpoints to average at the end; 0 = none")
    max_bad_steps: limits.Interval = Field(20, description="consecutive steps with a non-finite loss before stopping")
    device: Device = "auto"
    threads: limits.Threads = Field(
        "auto", description="threads on the CPU; auto: the fastest number, measured when training starts", examples=[2]
    )


class SearchConfig(Section):
    beam: limits.Beams = 4
    alpha: limits.LengthPenalty = Field(0.6, description="length penalty ((5 + length) / 6) ** alpha (Wu et al. 2016)")
    max_extra: limits.ExtraTokens = Field(50, description="maximum output length: source tokens plus this")
    min_length: limits.LeastTokens = 0
    no_repeat_ngram: limits.NgramSize = 0
