"""`[model.position]`: how a Transformer represents the order of tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dragoman.config import limits
from dragoman.config.section import Section

__all__ = [
    "AlibiPosition",
    "LearnedPosition",
    "NoPosition",
    "Position",
    "RecurrentPosition",
    "RotaryPosition",
    "ShawPosition",
    "SinusoidalPosition",
    "T5Position",
]


class NoPosition(Section):
    """No position encoding; only the causal mask of a decoder provides order (Haviv et al. 2022)."""

    kind: Literal["none"] = "none"


class SinusoidalPosition(Section):
    """Fixed sines and cosines, added to the embeddings (Vaswani et al. 2017, 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    full_range: bool = Field(
        False,
        description="whether the slowest rate is 1/10000, as in Tensor2Tensor, Marian and fairseq, instead of the "
        "paper's 10000^(2/d_model - 1)",
        examples=[True],
    )


class LearnedPosition(Section):
    """A learned vector per position, added to the embeddings (Gehring et al. 2017)."""

    kind: Literal["learned"] = "learned"
    max_len: limits.Positions = Field(
        512, description="maximum number of positions; longer input is rejected", examples=[1024]
    )


class RecurrentPosition(Section):
    """The states of a recurrent network, added to the embeddings."""

    kind: Literal["recurrent"] = "recurrent"
    source: Literal["embeddings", "positions"] = Field(
        "embeddings",
        description="input of the recurrent network: the embeddings, or its previous output",
        examples=["positions"],
    )


class ShawPosition(Section):
    """A learned vector per relative distance, added to keys and values (Shaw et al. 2018)."""

    kind: Literal["shaw"] = "shaw"
    clip: limits.Distance = Field(
        16, description="maximum relative distance in tokens; larger distances are clipped", examples=[32]
    )


class T5Position(Section):
    """A learned bias of the attention scores per head and bucket of distances (Raffel et al. 2020)."""

    kind: Literal["t5"] = "t5"
    buckets: limits.Buckets = Field(
        32, description="number of buckets of distances; half are linear, half logarithmic", examples=[64]
    )
    max_distance: limits.Distance = Field(
        128, description="distance in tokens; larger distances share the last bucket", examples=[256]
    )

    @model_validator(mode="after")
    def _distances(self) -> T5Position:
        if self.max_distance <= self.buckets // 2:
            raise ValueError(f"max_distance {self.max_distance} must be more than half of the {self.buckets} buckets")
        return self


class RotaryPosition(Section):
    """Queries and keys rotated by angles proportional to the position (Su et al. 2021)."""

    kind: Literal["rotary"] = "rotary"
    base: limits.RotaryBase = Field(
        10000.0, description="base of the wavelengths (theta); larger values suit longer texts", examples=[500_000.0]
    )
    fraction: limits.RotaryFraction = Field(
        1.0, description="fraction of the dimensions of each head that are rotated", examples=[0.5]
    )


class AlibiPosition(Section):
    """A fixed penalty of the attention scores, proportional to the distance (Press et al. 2022)."""

    kind: Literal["alibi"] = "alibi"


Position = Annotated[
    NoPosition
    | SinusoidalPosition
    | LearnedPosition
    | RecurrentPosition
    | ShawPosition
    | T5Position
    | RotaryPosition
    | AlibiPosition,
    Field(discriminator="kind"),
]
