"""`[model.position]`: how a Transformer represents the order of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from dragoman.config import limits
from dragoman.config.section import Section, field

ActsOn = Literal["nothing", "embeddings", "queries", "scores"]
"""What a position encoding changes; `queries` includes the keys, `scores` those of the attention."""


class NoPosition(Section):
    """No position encoding; only the causal mask of a decoder provides order (Haviv et al. 2022)."""

    acts_on: ClassVar[ActsOn] = "nothing"
    kind: Literal["none"] = "none"


class SinusoidalPosition(Section):
    """Fixed sines and cosines, added to the embeddings (Vaswani et al. 2017, 3.5)."""

    acts_on: ClassVar[ActsOn] = "embeddings"
    kind: Literal["sinusoidal"] = "sinusoidal"
    full_range: bool = field(
        False,
        "whether the slowest rate is 1/10000, as in Tensor2Tensor, Marian and fairseq, instead of the paper's "
        "10000^(2/d_model - 1)",
        example=True,
    )


class LearnedPosition(Section):
    """A learned vector per position, added to the embeddings (Gehring et al. 2017)."""

    acts_on: ClassVar[ActsOn] = "embeddings"
    kind: Literal["learned"] = "learned"
    max_len: limits.Positions = field(512, "maximum number of positions; longer input is rejected", example=1024)


class RecurrentPosition(Section):
    """The states of a recurrent network, added to the embeddings."""

    acts_on: ClassVar[ActsOn] = "embeddings"
    kind: Literal["recurrent"] = "recurrent"
    source: Literal["embeddings", "positions"] = field(
        "embeddings", "input of the recurrent network: the embeddings, or its previous output", example="positions"
    )


class ShawPosition(Section):
    """A learned vector per relative distance, added to keys and values (Shaw et al. 2018)."""

    acts_on: ClassVar[ActsOn] = "scores"
    kind: Literal["shaw"] = "shaw"
    clip: limits.Distance = field(16, "maximum relative distance in tokens; larger distances are clipped", example=32)


class T5Position(Section):
    """A learned bias of the attention scores per head and bucket of distances (Raffel et al. 2020)."""

    acts_on: ClassVar[ActsOn] = "scores"
    kind: Literal["t5"] = "t5"
    buckets: limits.Buckets = field(32, "number of buckets of distances; half are linear, half logarithmic", example=64)
    max_distance: limits.Distance = field(
        128, "distance in tokens; larger distances share the last bucket", example=256
    )

    def _problems(self, stored: bool) -> Iterator[str]:
        if self.max_distance <= self.buckets // 2:
            yield f"max_distance {self.max_distance} must be more than half of the {self.buckets} buckets"


class NoScaling(Section):
    """Rotary positions as Su et al. define them."""

    kind: Literal["none"] = "none"

    @property
    def numbers(self) -> tuple[float, ...]:
        """The argument `scaling` of `nn.position_tables.rotary_rates`."""
        return ()


class LinearScaling(Section):
    """All angles are divided by a factor (Chen et al. 2023, position interpolation)."""

    kind: Literal["linear"] = "linear"
    factor: limits.RotaryFactor = field(2.0, "divisor of the angles: how many times longer texts become", example=4.0)

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.factor,)


class Llama3Scaling(Section):
    """Angles with long wavelengths are divided by a factor, as in Llama 3.1 (Dubey et al. 2024)."""

    kind: Literal["llama3"] = "llama3"
    factor: limits.RotaryFactor = field(8.0, "divisor of the angles with long wavelengths", example=32.0)
    low: limits.RotaryFactor = field(1.0, "wavelengths above original_len / low are divided by factor", example=2.0)
    high: limits.RotaryFactor = field(
        4.0, "wavelengths below original_len / high stay the same; in between, both are mixed", example=8.0
    )
    original_len: limits.Positions = field(
        8192, "length in tokens for which the model was trained before", example=4096
    )

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.factor, self.low, self.high, float(self.original_len))

    def _problems(self, stored: bool) -> Iterator[str]:
        if self.high <= self.low:
            yield f"high {self.high} must be more than low {self.low}"


Scaling = Annotated[NoScaling | LinearScaling | Llama3Scaling, Field(discriminator="kind")]


class RotaryPosition(Section):
    """Queries and keys rotated by angles proportional to the position (Su et al. 2021)."""

    acts_on: ClassVar[ActsOn] = "queries"
    kind: Literal["rotary"] = "rotary"
    base: limits.RotaryBase = field(
        10000.0, "base of the wavelengths (theta); larger values suit longer texts", example=500_000.0
    )
    fraction: limits.RotaryFraction = field(
        1.0, "fraction of the dimensions of each head that are rotated", example=0.5
    )
    scaling: Scaling = field(NoScaling(), "change of the angles for longer texts than before", example="llama3")


class RotaryByLayerPosition(Section):
    """Rotary positions with two bases, as in Gemma 3: one in every `period`-th layer, `local_base` in the others."""

    acts_on: ClassVar[ActsOn] = "queries"
    kind: Literal["rotary_by_layer"] = "rotary_by_layer"
    base: limits.RotaryBase = field(1_000_000.0, "base of the wavelengths in every period-th layer", example=500_000.0)
    local_base: limits.RotaryBase = field(10_000.0, "base of the wavelengths in the other layers", example=5_000.0)
    period: limits.Layers = field(6, "number of layers after which one uses base", example=2)
    scaling: Scaling = field(NoScaling(), "change of the angles of base for longer texts than before", example="llama3")


class OtherPosition(Section):
    """Base of sections without keys for positions that other packages register (`registry.py`)."""

    acts_on: ClassVar[ActsOn] = "scores"


class AlibiPosition(Section):
    """A fixed penalty of the attention scores, proportional to the distance (Press et al. 2022)."""

    acts_on: ClassVar[ActsOn] = "scores"
    kind: Literal["alibi"] = "alibi"


Position = Annotated[
    NoPosition
    | SinusoidalPosition
    | LearnedPosition
    | RecurrentPosition
    | ShawPosition
    | T5Position
    | RotaryPosition
    | RotaryByLayerPosition
    | AlibiPosition,
    Field(discriminator="kind"),
]


def position_kinds(*acts_on: ActsOn) -> list[str]:
    """Return the built-in kinds that act on one of these."""
    sections = get_args(get_args(Position)[0])
    return [section.model_fields["kind"].default for section in sections if section.acts_on in acts_on]
