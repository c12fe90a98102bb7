"""`[train]` and `[search]`: training and decoding."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from dragoman.config import limits
from dragoman.config.data import Tag
from dragoman.config.section import AcceptStored, Duration, DurationField, IntervalField, Section, Share, field


def _expression(value: str) -> str:
    try:
        is_blank = re.compile(value).match("")
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression ({error}); accepted: such as [A-Z]{{2}}-[0-9]+") from None
    if is_blank:
        raise ValueError("matches the empty text; accepted: a regular expression such as [A-Z]{2}-[0-9]+")
    return value


Expression = Annotated[str, AfterValidator(_expression)]
Device = Annotated[str, Field(pattern="^(auto|cpu|(cuda|mps|xpu|hpu)(:[0-9]{1,3})?)$"), AcceptStored]


class _Adam(Section):
    kind: str
    beta1: limits.Beta = field(0.9, "decay rate of the running mean of the gradient", example=0.9)
    beta2: limits.Beta = field(
        0.98, "decay rate of the running mean of the squared gradient (Vaswani et al. 2017, 5.3: 0.98)", example=0.999
    )
    eps: limits.AdamEpsilon = field(1e-9, "added to the denominator of the update", example=1e-8)


class _AdamW(_Adam):
    weight_decay: limits.WeightDecay = field(
        0.01,
        "decoupled weight decay: subtract learning rate * weight_decay * weight from matrices; 0 = none",
        example=0.1,
    )


class AdamConfig(_Adam):
    """Adam: updates scaled by running means of the gradient and of its square (Kingma and Ba 2015)."""

    kind: Literal["adam"] = "adam"


class AdamWConfig(_AdamW):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"


class MuonConfig(_AdamW):
    """Muon (Jordan et al. 2024) for the matrices of the layers, AdamW for all other parameters.

    The momentum of a matrix is orthogonalized, and scaled to the root mean square of an update of AdamW (Liu et al.
    2025), so that both use the same learning rate.  AdamW updates embeddings, positions, the output matrix and vectors.
    """

    kind: Literal["muon"] = "muon"
    momentum: limits.Beta = field(0.95, "decay rate of Nesterov momentum", example=0.9)


class SGDConfig(Section):
    """Gradient descent: g = gradient + weight_decay * w, v = momentum * v + g, w = w - learning rate * v.

    As in torch.optim.SGD, the decay is part of the gradient (L2 regularization).  Without momentum v = g.
    """

    kind: Literal["sgd"] = "sgd"
    momentum: limits.Beta = field(
        0.0, "momentum: fraction of the previous update added to the current one; 0 = none", example=0.9
    )
    weight_decay: limits.WeightDecay = field(0.0, "L2 regularization of the matrices; 0 = none", example=1e-4)


class InverseSqrtSchedule(Section):
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, equation 3)."""

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    factor: limits.ScheduleFactor = field(
        1.0, "scale of the schedule; the peak learning rate is factor / sqrt(d_model * warmup)", example=2.0
    )
    warmup: limits.Steps = field(4000, "number of warm-up steps, or a share of the budget", example=4000)


class BudgetSchedule(Section):
    """Linear warm-up, constant at `peak`, then decay to zero at the end of the budget."""

    kind: Literal["budget"] = "budget"
    peak: limits.PeakRate = field(3e-3, "peak learning rate", example=2e-3)
    warmup: limits.Steps = field(100, "number of warm-up steps, or a share of the budget", example=400)
    decay: limits.Decay = field(
        0.5, "fraction of the budget, at its end, over which the rate decays to zero", example=0.7
    )
    shape: Literal["linear", "cosine"] = field("linear", "shape of the decay curve", example="cosine")


class _DecaySchedule(Section):
    kind: str
    peak: limits.PeakRate = field(3e-3, "peak learning rate", example=2e-3)
    warmup: limits.Steps = field(100, "number of warm-up steps, or a share of the budget", example=400)
    floor: limits.RateFloor = field(0.0, "rate at the end, as a fraction of the peak", example=0.1)


class LinearSchedule(_DecaySchedule):
    """Linear warm-up, then linear decay from `peak` at the start of the budget to floor * peak at its end."""

    kind: Literal["linear"] = "linear"


class CosineSchedule(_DecaySchedule):
    """Linear warm-up, then half a cosine over the budget from `peak` to floor * peak (Loshchilov and Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"


class WarmupStableDecaySchedule(_DecaySchedule):
    """Linear warm-up, constant at `peak`, then a short decay 1 - sqrt(x) (Hu et al. 2024; Hägele et al. 2024).

    A checkpoint from the constant part can be trained longer with a larger budget.
    """

    kind: Literal["warmup_stable_decay"] = "warmup_stable_decay"
    decay: limits.Decay = field(
        0.2, "final fraction of the budget, in which the rate falls to floor * peak", example=0.1
    )


class ConstantSchedule(Section):
    """Linear warm-up, then constant at `rate`."""

    kind: Literal["constant"] = "constant"
    rate: limits.PeakRate = field(1e-3, "learning rate after the warm-up", example=1e-3)
    warmup: limits.Steps = field(
        1, "number of warm-up steps, or a share of the budget; 1 = `rate` from the first step", example=100
    )


class _Parallel(Section):
    kind: str
    timeout: DurationField = field(
        Duration(amount=10 * 60, unit="seconds"),
        "time after which a process that does not answer is regarded as lost, and the others end",
        example="2 min",
    )

    @field_validator("timeout")
    @classmethod
    def _is_time(cls, value: Duration) -> Duration:
        if value.unit != "seconds":
            raise ValueError('accepted: a time, such as "10 min"')
        return value


class ReplicatedConfig(_Parallel):
    """Every process has the whole model and the whole state of the optimizer (data parallelism)."""

    kind: Literal["replicated"] = "replicated"


class FSDPConfig(_Parallel):
    """Every process stores a part of each weight, gradient, moment and moving average (FSDP2; Zhao et al. 2023).

    A layer is gathered when it is computed.  For models that do not fit into one GPU with the state of the optimizer.
    """

    kind: Literal["fsdp"] = "fsdp"


Parallel = Annotated[
    Annotated[ReplicatedConfig | FSDPConfig, Field(discriminator="kind")],
    BeforeValidator(lambda value: {"kind": "replicated", **value} if isinstance(value, dict) else value),
]
Optimizer = Annotated[AdamConfig | AdamWConfig | MuonConfig | SGDConfig, Field(discriminator="kind")]
Schedule = Annotated[
    InverseSqrtSchedule
    | BudgetSchedule
    | LinearSchedule
    | CosineSchedule
    | WarmupStableDecaySchedule
    | ConstantSchedule,
    Field(discriminator="kind"),
]


class LoRAConfig(Section):
    """Low-rank adaptation (Hu et al. 2021): W becomes W + alpha / rank * B A.

    Only A and B are trained.  A (rank, in) is random, B (out, rank) is 0 at the start.  The saved model contains the
    sum.
    """

    rank: limits.Rank = field(8, "rows of A and columns of B", example=16)
    alpha: limits.Alpha = field(16.0, "scale of the update; it is divided by the rank", example=32.0)
    targets: tuple[Literal["attention", "feed_forward"], ...] = field(
        ("attention", "feed_forward"),
        "layers whose matrices are adapted; queries, keys and values are one matrix",
        example=["attention"],
        min_length=1,
    )

    @property
    def scale(self) -> float:
        """The factor of B A."""
        return self.alpha / self.rank


class RegularizerConfig(Section):
    """Regularization beside dropout and label smoothing; the ideas may be combined."""

    r_drop: limits.DivergenceWeight = field(
        0.0,
        "compute each batch twice, with different dropout, and add this weight times the divergence of the two "
        "distributions (R-Drop, Wu et al. 2021); 0 = off, more than twice the time of a step",
        example=5.0,
    )
    simcut: limits.DivergenceWeight = field(
        0.0,
        "compute each batch twice, the second time with cut tokens, and add this weight times the divergence from the "
        "first distribution (SimCut, Gao et al. 2022); 0 = off, more than twice the time of a step",
        example=3.0,
    )
    cutoff: limits.Dropout = field(
        0.0,
        "share of the input tokens whose vectors are 0 (token cutoff, Shen et al. 2020); with `simcut` those of the "
        "second pass, where 0 means 0.05",
        example=0.05,
    )
    relaxed_attention: limits.Dropout = field(
        0.0,
        "share of the attention weights that is uniform in training, in the encoder and in the attention to the "
        "source (Lohrenz et al. 2023)",
        example=0.1,
    )
    stochastic_depth: limits.Dropout = field(
        0.0,
        "share of the sentences for which the sublayers of the last layer are skipped in training; it grows linearly "
        "from the first layer (Huang et al. 2016)",
        example=0.1,
    )

    @property
    def cut(self) -> float:
        """The share of the input tokens that is cut, in the second pass if there is `simcut`."""
        return self.cutoff or (0.05 if self.simcut else 0.0)


class TrainConfig(Section):
    """Length of the training, optimizer, learning rate, validation and checkpoints."""

    budget: DurationField = field(
        Duration(amount=20 * 60, unit="seconds"),
        "length of the training; the schedule `budget` reaches zero at its end",
        example="30 epochs",
    )
    expected_speed: limits.OptionalCount = field(
        0,
        "tokens per second (source + target) that `dragoman new` expects, including validations; a training in "
        "minutes that reaches less than 80 % reports it; 0 = unknown",
        example=4500,
    )
    init_from: str | None = field(
        None,
        "fine-tuning: model folder or run whose weights, tokenizer, `[model]` and `[search]` the run starts with; a "
        "relative path is resolved against the folder of the TOML file",
        example="en-de",
        min_length=1,
    )
    start_share: limits.StartShare = field(
        0.0,
        "share of the weights of `init_from` in the result, whose other part are the best weights of the training: the "
        "model forgets less (WiSE-FT, Wortsman et al. 2022); 0 = none",
        example=0.5,
    )
    lora: LoRAConfig | None = field(
        None,
        "train low-rank adapters of the matrices instead of all weights; requires `init_from`",
        example={"rank": 16},
    )
    batch_tokens: limits.TokensPerBatch = field(
        4096,
        "source + target tokens per batch, with padding; auto: the largest number that fits into the memory, up to "
        "the fastest, chosen when a run begins",
        example=8192,
    )
    accumulate: limits.Batches = field(
        1, "gradient accumulation: batches per update; equivalent to larger batches, with less memory", example=4
    )
    optimizer: Optimizer = field(AdamConfig(), "optimization algorithm", example="adamw")
    schedule: Schedule = field(InverseSqrtSchedule(), "learning rate schedule", example="budget")
    label_smoothing: limits.Dropout = field(
        0.1, "target probability distributed uniformly over all tokens (Szegedy et al. 2016)", example=0.1
    )
    regularizer: RegularizerConfig = field(
        RegularizerConfig(), "regularization beside dropout and label smoothing", example={"simcut": 3.0}
    )
    clip_norm: limits.GradientNorm = field(
        0.0, "maximum norm of the gradient (Pascanu et al. 2013); 0 = no clipping", example=1.0
    )
    precision: Literal["float32", "bf16", "fp16"] = field(
        "float32",
        "precision of products, with weights in float32: bf16 is faster on hardware that multiplies it; fp16, with "
        "dynamic loss scaling, is for GPUs without bf16",
        example="bf16",
    )
    gradient_checkpointing: bool = field(
        False,
        "store only the inputs of each layer of a Transformer and compute the layer again in the backward pass "
        "(Chen et al. 2016): less memory, more time, the same gradients",
        example=True,
    )
    seed: limits.Seed = field(
        1, "random seed of the initialization, the order of the data, dropout and sampling", example=2
    )
    ema: limits.Beta = field(
        0.0, "decay rate of the moving average of the weights, which is validated and saved; 0 = none", example=0.999
    )
    log_every: limits.Interval = field(20, "steps between log lines", example=100)
    validate_every: IntervalField = field(
        Duration(amount=1, unit="epochs"),
        "interval between validations; each validation saves a checkpoint",
        example="500 steps",
    )
    save_every: IntervalField = field(
        Duration(amount=5 * 60, unit="seconds"),
        "interval between checkpoints without validation; a killed training loses at most this much",
        example="2000 steps",
    )
    validate_sentences: limits.Sentences = field(
        1000, "sentences decoded per validation; the loss is computed on all sentences", example=200
    )
    metric: Literal["bleu", "chrf", "chrf++", "loss", "accuracy", "f1"] = field(
        "loss",
        "metric that selects the best checkpoint: loss for all data; bleu, chrf, chrf++ for parallel text; accuracy "
        "for masked text, tags, labels and images; f1 for trees",
        example="bleu",
    )
    patience: limits.OptionalCount = field(
        0,
        "early stopping: number of validations without improvement of the metric, and if that is the loss, of no other "
        "metric of the data either; 0 = off",
        example=5,
    )
    keep: limits.Checkpoints = field(5, "number of recent checkpoints to keep, in addition to the best", example=10)
    average: limits.Averaged = field(
        0,
        "number of last checkpoints to average at the end, or a share: those of the last steps; 0 = none",
        example="10%",
    )
    max_bad_steps: limits.Interval = field(
        20, "consecutive steps with a non-finite loss before training stops", example=50
    )
    parallel: Parallel = field(
        ReplicatedConfig(), "training by several processes, which torchrun starts", example="fsdp"
    )
    device: Device = field("auto", "auto: a GPU if available; cuda:1 selects the second GPU", example="cuda:1")
    cuda_graphs: Literal["auto", "off"] = field(
        "auto",
        "auto: on one GPU, record the steps of a Transformer that translates as CUDA graphs, one for each shape of "
        "a batch, and pad batches to few shapes: faster for small models",
        example="off",
    )
    threads: limits.Threads = field(
        "auto", "CPU threads; auto: the fastest number, measured when training starts", example=2
    )

    @property
    def averages(self) -> bool:
        """Whether checkpoints are averaged at the end."""
        return isinstance(self.average, Share) or self.average > 1


class SearchConfig(Section):
    """Default settings of decoding, in `translate` and in Python."""

    beam: limits.Beams = field(4, "beam size: hypotheses per step; 1 = greedy search", example=5)
    shrink_beam: bool = field(True, "each complete hypothesis makes the beam narrower by one: faster", example=False)
    beam_threshold: limits.BeamThreshold = field(
        0.0,
        "hypotheses leave the beam if their log-probability is more than this below that of the best one: faster; "
        "0 = off",
        example=4.0,
    )
    recombine: limits.LastTokens = field(
        0,
        "of unfinished hypotheses with this many equal last tokens, only the best one stays in the beam: faster, "
        "with some other translations; 0 = off",
        example=2,
    )
    early_end: limits.EarlyEnd = field(
        "auto",
        "on: hypotheses leave the beam if they cannot enter the full n-best list by ending with the next token: "
        "faster; auto: on if `beam_threshold` is not 0",
        example="off",
    )
    alpha: limits.LengthPenalty = field(
        0.6,
        "length penalty: scores are divided by ((5 + length) / 6) ** alpha (Wu et al. 2016); larger values favour "
        "longer output",
        example=1.0,
    )
    max_extra: limits.ExtraTokens = field(
        50, "maximum output length in tokens, in addition to the length of the source", example=100
    )
    min_length: limits.LeastTokens = field(0, "minimum output length in tokens", example=1)
    no_repeat_ngram: limits.NgramSize = field(
        0, "size of n-grams that may occur only once in an output; 0 = off", example=3
    )
    protect: tuple[Expression, ...] = field(
        (),
        "regular expressions of texts that a translation contains unchanged, beside URLs, {name}, %s and the like",
        example=["[A-Z]+-[0-9]+"],
    )
    tag: Tag | None = field(
        None, "symbol before every source that is translated (see `data.train[].tag`)", example="<news>"
    )
    split_sentences: Literal["auto", "on", "off"] = field(
        "auto",
        "on: `translate` splits lines into sentences; auto: unless most training lines have several sentences",
        example="on",
    )
