"""The limits of every number in a configuration: one type per quantity, with the reason for its range.

Lower limits exclude values that disable a part by accident or vanish in float32.  Upper limits are well above anything
published or useful: larger values are typos or exhaust the memory or time of any machine.  A value within its
limits may still be too large for a given machine; training estimates the memory before it starts.
"""

from typing import Annotated, Literal

from pydantic import Field

from dragoman.config.section import AcceptStored, NotBoolean, Share, auto_or, or_share, zero_or

_Whole = Annotated[int, NotBoolean]
_Real = Annotated[float, NotBoolean]
_UNLIMITED = 2**63 - 1
"""The largest integer of TOML, for counts that allocate nothing."""

# ------------------------------------------------------------------------------------------------------------- shapes

Width = Annotated[_Whole, Field(ge=1, le=65_536)]
"""d_model.  The widest published models have about 20,000; at 65,536 one layer has tens of billions of parameters."""
FeedForward = Annotated[_Whole, Field(ge=1, le=262_144)]
"""d_ff.  Four times the widest d_model, the ratio of Vaswani et al. 2017."""
Heads = Annotated[_Whole, Field(ge=1, le=1024)]
"""Attention heads.  Published models have up to 128."""
KeySize = Annotated[_Whole, Field(ge=1, le=4096)]
"""d_key.  Queries and keys of published models have at most 576 features per head."""
ValueSize = Annotated[_Whole, Field(ge=1, le=4096)]
"""d_value.  Values of published models have at most 512 features per head."""
Layers = Annotated[_Whole, Field(ge=1, le=1000)]
"""Layers per stack.  The deepest published Transformer has 1,000 (Wang et al. 2022, DeepNet)."""
Kernel = Annotated[_Whole, Field(ge=1, le=1023)]
"""Width of a convolution.  A kernel longer than the sentences sees only padding."""
Positions = Annotated[_Whole, Field(ge=1, le=1_048_576)]
"""Rows of a position embedding.  Attention over 2**20 positions has 2**40 weights per head."""
Distance = Annotated[_Whole, Field(ge=1, le=65_536)]
"""Relative distances with separate weights: no example has more tokens (TokensPerExample)."""
Buckets = Annotated[_Whole, Field(ge=4, le=65_536, multiple_of=4)]
"""Buckets of relative distances, for two directions with linear and logarithmic halves; at most one per distance."""
Pixels = Annotated[_Whole, Field(ge=1, le=8192)]
"""Height and width of an image or a patch."""
Channels = Annotated[_Whole, Field(ge=1, le=1024)]
"""Channels of an image: 1 for grey, 3 for colour; spectral cameras have hundreds."""
PixelMeans = Annotated[tuple[Annotated[_Real, Field(ge=-1000, le=1000)], ...], Field(min_length=1, max_length=1024)]
"""Means of pixels per channel, which are from 0 to 1; others are for models of other ranges."""
PixelDeviations = Annotated[tuple[Annotated[_Real, Field(ge=1e-6, le=1000)], ...], Field(min_length=1, max_length=1024)]
"""Standard deviations of pixels per channel: below 1e-6 all pixels of a channel are equal."""
RotaryBase = Annotated[_Real, Field(gt=1, le=1e9)]
"""Base of the wavelengths of rotary positions: with 1 all are equal; long-context models use up to about 10**7."""
RotaryFraction = Annotated[_Real, Field(ge=0.001, le=1)]
"""Fraction of the dimensions of a head that is rotated; at least one pair."""
RotaryFactor = Annotated[_Real, Field(ge=1, le=1e4)]
"""How many times longer texts become by scaled rotary positions; Llama 3.1 has 8."""
VocabularySize = Annotated[_Whole, Field(ge=8, le=1_048_576)]
"""Vocabulary size, with 4 special tokens; the largest published one is 1,000,000 (Liang et al. 2023, XLM-V)."""

# ---------------------------------------------------------------------------------------------------- regularisation

Dropout = Annotated[_Real, Field(ge=0, le=0.9), AcceptStored]
"""Dropout, label smoothing, subword sampling: above 0.9 less than a tenth of the signal remains."""
DivergenceWeight = Annotated[
    _Real, Field(ge=0, le=1000), zero_or(1e-3, "accepted: 0 (off) or 0.001 to 1,000"), AcceptStored
]
"""Weight of the divergence of two passes: published ones are 0.5 to 10; with 1,000 nothing else is learnt."""
ChangedShare = Annotated[_Real, Field(ge=0, le=1), AcceptStored]
"""Share of the training pairs that are changed: none to all."""
MaskedFraction = Annotated[_Real, Field(ge=0.001, le=0.9), AcceptStored]
"""Fraction of tokens that are masked; both masked and unmasked tokens must remain."""
NormEpsilon = Annotated[_Real, Field(ge=1e-12, le=0.1), AcceptStored]
"""Added to a variance: below 1e-12 it has no effect in float32, above 0.1 it distorts the result."""
Momentum = Annotated[_Real, Field(ge=1e-5, le=1), AcceptStored]
"""Momentum of running statistics: 1e-5 averages over 100,000 batches."""

# ---------------------------------------------------------------------------------------------------------- training

Beta = Annotated[_Real, Field(ge=0, le=0.99999), AcceptStored]
"""Decay of a moving average (Adam's moments, the momentum of SGD, EMA): 0.99999 averages over about 100,000 steps."""
AdamEpsilon = Annotated[_Real, Field(ge=1e-16, le=1), AcceptStored]
"""Adam's epsilon: usually 1e-9 to 1e-6; 1 makes Adam almost gradient descent with momentum; above 1 updates vanish."""
WeightDecay = Annotated[_Real, Field(ge=0, le=10), AcceptStored]
"""AdamW and SGD subtract rate * decay * weight in every step: above 10 the weights vanish during warm-up."""
PeakRate = Annotated[_Real, Field(ge=1e-12, le=1000), AcceptStored]
"""Learning rate: SGD multiplies the gradient by it; 30 has been published (Merity et al. 2018).  See ADAM_RATES."""
ScheduleFactor = Annotated[_Real, Field(ge=1e-6, le=1e6), AcceptStored]
"""Factor of the inverse square root schedule, whose peak is factor / sqrt(d_model * warmup).  See ADAM_RATES."""
ADAM_RATES = {"peak": 1.0, "rate": 1.0, "factor": 100.0}
"""Upper limits with Adam, which changes every weight by about the rate per step; weights are smaller than 1."""
Decay = Annotated[_Real, Field(ge=0.001, le=1), AcceptStored]
RateFloor = Annotated[_Real, Field(ge=0, le=1), AcceptStored]
"""Fraction of the budget in which the learning rate decays: at least one step in a thousand."""
Steps = Annotated[Annotated[int, Field(ge=1, le=10_000_000)] | Share, or_share(1, 10_000_000), AcceptStored]
"""Warm-up steps: ten million are months on any machine."""
Interval = Annotated[_Whole, Field(ge=1, le=_UNLIMITED), AcceptStored]
"""Steps between two log lines, or bad steps in a row before stopping; a large number means never."""
Batches = Annotated[_Whole, Field(ge=1, le=65_536), AcceptStored]
"""Batches per update: 65,536 batches of 4,096 tokens are more than the largest batches in use."""
TokensPerBatch = Annotated[Literal["auto"] | int, auto_or(16, 16_777_216), AcceptStored]
"""Tokens per batch: with 2**24, even the logits of the smallest vocabulary need hundreds of megabytes."""
GradientNorm = Annotated[
    _Real, Field(ge=0, le=1e6), zero_or(1e-6, "accepted: 0 (no clipping) or 1e-06 to 1,000,000"), AcceptStored
]
"""Gradient norm: 0 disables clipping; below 1e-6 gradients vanish, above 1e6 nothing is clipped."""
Seed = Annotated[_Whole, Field(ge=0, le=_UNLIMITED), AcceptStored]
"""Seeds: the non-negative integers of TOML, which every random number generator accepts."""
Sentences = Annotated[_Whole, Field(ge=1, le=2**31 - 1), AcceptStored]
"""Sentences to decode or to learn from; all if there are fewer."""
Corpora = Annotated[_Whole, Field(ge=1, le=10_000), AcceptStored]
"""Corpora to learn a vocabulary from; a large number means all."""
Lines = Annotated[_Whole, Field(ge=1, le=100), AcceptStored]
"""Consecutive lines in one text: data.filter.max_tokens excludes longer ones."""
Temperature = Annotated[_Real, Field(ge=1, le=1000), AcceptStored]
"""1 draws corpora in proportion to their sizes; a large number draws all equally often."""
Checkpoints = Annotated[_Whole, Field(ge=1, le=_UNLIMITED), AcceptStored]
"""Checkpoints to keep; a large number means all."""
OptionalCount = Annotated[_Whole, Field(ge=0, le=_UNLIMITED), AcceptStored]
"""Validations without improvement, or tokens per second; 0 is off or unknown, a large number means never."""
Averaged = Annotated[Annotated[int, Field(ge=0, le=_UNLIMITED)] | Share, or_share(0, _UNLIMITED), AcceptStored]
"""Checkpoints to average; 0 is off, a large number means all."""
StartShare = Annotated[_Real, Field(ge=0, le=0.99), AcceptStored]
"""Share of the original weights in the result; with all of them, nothing is learned."""
Threads = Annotated[Literal["auto"] | int, auto_or(1, 1024), AcceptStored]
"""CPU threads; servers have up to several hundred cores."""

Trials = Annotated[_Whole, Field(ge=1, le=100_000)]
"""Trials of a search: each is a training."""
Rank = Annotated[_Whole, Field(ge=1, le=4096)]
"""Rank of LoRA: published ones are 1 to 512; a rank close to d_model saves nothing."""
Alpha = Annotated[_Real, Field(ge=1e-3, le=1e5)]
"""LoRA scales its update by alpha / rank; alpha is usually 1 to 2 times the rank.

Not `AcceptStored`: changing it would change the weights of a stored model."""

# -------------------------------------------------------------------------------------------------------------- data

Coverage = Annotated[_Real, Field(ge=0.98, le=1), AcceptStored]
"""Fraction of the characters of a text that the vocabulary covers; sentencepiece accepts no less than 0.98."""
CorpusWeight = Annotated[_Real, Field(ge=1e-4, le=1000), AcceptStored]
"""Passes over a corpus per epoch: below 1e-4 most corpora add no pair; above 1,000 an epoch exceeds the memory."""
Characters = Annotated[_Whole, Field(ge=1, le=_UNLIMITED), AcceptStored]
"""Characters of one side of a pair; a large number disables the filter."""
Ratio = Annotated[_Real, Field(gt=1, le=1e18), AcceptStored]
"""Length ratio of the two sides; a large number disables the filter."""
TokensPerBlock = Annotated[_Whole, Field(ge=2, le=65_536)]
"""Tokens of a block of text: one as input and one to predict; see TokensPerExample for the upper limit."""
TokensPerExample = Annotated[_Whole, Field(ge=4, le=65_536)]
"""Tokens of the longest example: attention needs memory proportional to its square."""
ContextTokens = Annotated[_Whole, Field(ge=0, le=65_536), AcceptStored]
"""Tokens of earlier turns before a window of a dialogue; same upper limit as TokensPerExample."""

# ------------------------------------------------------------------------------------------------------------ search

Beams = Annotated[_Whole, Field(ge=1, le=4096), AcceptStored]
"""Hypotheses per step; each has its own keys and values in memory."""
EarlyEnd = Literal["auto", "on", "off"]
BeamThreshold = Annotated[_Real, Field(ge=0, le=1000), AcceptStored]
"""Difference of log-probabilities; 0 is off.  A hypothesis that is e**20 times less probable hardly ever wins."""
SampleTemperature = Annotated[_Real, Field(ge=0.01, le=100), AcceptStored]
"""Divides the logits of sampling: near 0 it is greedy search, far above 1 all tokens are equally probable."""
LeastScore = Annotated[_Real, Field(ge=-100, le=0), AcceptStored]
"""Mean natural log-probability per token: 0 is certain, and below -10 are random tokens."""
MostCost = Annotated[_Real, Field(ge=0, le=200), AcceptStored]
"""Cross-entropy per token in nats: a good translation has about 1, a random token 10."""
LastTokens = Annotated[_Whole, Field(ge=0, le=10_000), AcceptStored]
"""Tokens at the end of two hypotheses that are compared; 0 is off."""
LengthPenalty = Annotated[_Real, Field(ge=0, le=10), AcceptStored]
"""Exponent of the length penalty: Wu et al. 2016 use 0 to 1; above 10 all scores round to 0."""
ExtraTokens = Annotated[_Whole, Field(ge=1, le=10_000), AcceptStored]
"""Tokens an output may have beyond its source."""
LeastTokens = Annotated[_Whole, Field(ge=0, le=10_000), AcceptStored]
"""Minimum number of output tokens; same upper limit as ExtraTokens."""
NgramSize = Annotated[
    _Whole,
    Field(ge=0, le=10_000),
    zero_or(2, "1 forbids every repeated token, even commas; accepted: 0 (off) or 2 to 10,000"),
    AcceptStored,
]
"""no_repeat_ngram: 0 is off; 1 would forbid every repeated token, even commas."""
