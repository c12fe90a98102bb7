"""`[model]`: architectures and the variants of their parts.

Each variant is a section selected by `kind` (an architecture by `architecture`), so that a key exists only where it has
an effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dragoman.config import limits
from dragoman.config.recurrent import GRUConfig, LSTMConfig, RecurrentEncoderConfig, RecurrentLMConfig, RNNConfig, Tie
from dragoman.config.section import Section

__all__ = [
    "PRESETS",
    "AlibiPosition",
    "BatchNormConfig",
    "BlockConfig",
    "ConvolutionalConfig",
    "DecoderOnlyConfig",
    "EncoderOnlyConfig",
    "LayerNormConfig",
    "LearnedPosition",
    "LinearAttention",
    "ModelConfig",
    "NoPosition",
    "RMSNormConfig",
    "RecurrentPosition",
    "RotaryPosition",
    "ShawPosition",
    "SinusoidalPosition",
    "SoftmaxAttention",
    "T5Position",
    "TransformerConfig",
    "VisionConfig",
]


class NoPosition(Section):
    kind: Literal["none"] = "none"


class SinusoidalPosition(Section):
    kind: Literal["sinusoidal"] = "sinusoidal"


class LearnedPosition(Section):
    kind: Literal["learned"] = "learned"
    max_len: limits.Positions = Field(512, description="number of positions; longer input is rejected")


class RecurrentPosition(Section):
    kind: Literal["recurrent"] = "recurrent"
    source: Literal["embeddings", "positions"] = Field(
        "embeddings", description="input of the RNN: the embeddings, or its own previous position vector"
    )


class ShawPosition(Section):
    kind: Literal["shaw"] = "shaw"
    clip: limits.Distance = Field(16, description="maximum distance; longer ones are clipped to it")


class T5Position(Section):
    kind: Literal["t5"] = "t5"
    buckets: limits.Buckets = 32
    max_distance: limits.Distance = Field(128, description="longer distances share the last bucket")

    @model_validator(mode="after")
    def _distances(self) -> T5Position:
        if self.max_distance <= self.buckets // 2:
            raise ValueError(f"max_distance {self.max_distance} must be more than half of the {self.buckets} buckets")
        return self


class RotaryPosition(Section):
    kind: Literal["rotary"] = "rotary"
    base: limits.RotaryBase = 10000.0
    fraction: limits.RotaryFraction = Field(1.0, description="fraction of the dimensions of each head that is rotated")


class AlibiPosition(Section):
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


class LayerNormConfig(Section):
    kind: Literal["layer"] = "layer"
    eps: limits.NormEpsilon = 1e-5


class RMSNormConfig(Section):
    kind: Literal["rms"] = "rms"
    eps: limits.NormEpsilon = 1e-6


class BatchNormConfig(Section):
    kind: Literal["batch"] = "batch"
    eps: limits.NormEpsilon = 1e-5
    momentum: limits.Momentum = Field(0.1, description="momentum of the running mean and variance")


Norm = Annotated[LayerNormConfig | RMSNormConfig | BatchNormConfig, Field(discriminator="kind")]


class SoftmaxAttention(Section):
    kind: Literal["softmax"] = "softmax"


class LinearAttention(Section):
    """Self-attention without softmax; cross-attention still uses softmax."""

    kind: Literal["linear"] = "linear"
    feature_map: Literal["elu", "relu", "softmax"] = "elu"


Attention = Annotated[SoftmaxAttention | LinearAttention, Field(discriminator="kind")]


PRESETS: dict[str, dict[str, Any]] = {
    # Vaswani et al. 2017, Table 3.
    "base": {"d_model": 512, "d_ff": 2048, "n_heads": 8, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.1},
    "big": {"d_model": 1024, "d_ff": 4096, "n_heads": 16, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.3},
    # Kasai et al. 2021: quality of base, but faster: the encoder runs once per sentence, the decoder once per token.
    "deep_shallow": {
        "d_model": 512, "d_ff": 2048, "n_heads": 8, "encoder_layers": 12, "decoder_layers": 1, "dropout": 0.1,
    },
}  # fmt: skip


class BlockConfig(Section):
    """Settings of all models made of Transformer layers; the defaults are the base model of Vaswani et al. 2017."""

    d_model: limits.Width = 512
    d_ff: limits.FeedForward = 2048
    n_heads: limits.Heads = 8
    n_kv_heads: limits.Heads | None = Field(None, description="key and value heads; 1 = multi-query")
    d_key: limits.KeySize | None = Field(
        None, description="features of a query or key per head; default d_model / n_heads, which values always have"
    )
    dropout: limits.Dropout = Field(0.1, description="after sub-layers and embeddings (Vaswani et al. 2017, 5.4)")
    attention_dropout: limits.Dropout = 0.0
    activation_dropout: limits.Dropout = 0.0
    order: Literal["post", "pre"] = "post"
    norm: Norm = LayerNormConfig()
    attention: Attention = SoftmaxAttention()
    position: Position = SinusoidalPosition()
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid"] = "relu"
    gated: bool = False
    bias: bool = True

    @model_validator(mode="after")
    def _fits(self) -> BlockConfig:
        if problems := [*self._sizes(), *self._combinations()]:
            raise ValueError("; ".join(problems))
        return self

    @property
    def d_head(self) -> int:
        """Features of a value per head."""
        return self.d_model // self.n_heads

    @property
    def key_size(self) -> int:
        """Features of a query or key per head."""
        return self.d_key or self.d_head

    def _sizes(self) -> Iterator[str]:
        if self.d_model % self.n_heads:
            fits = [h for h in range(1, min(self.d_model, 64) + 1) if self.d_model % h == 0]
            yield f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}; accepted n_heads: {fits}"
        elif isinstance(self.position, RotaryPosition):
            rotated = int(self.key_size * self.position.fraction)
            if rotated == 0 or rotated % 2:
                part = "" if self.position.fraction == 1 else f" (fraction {self.position.fraction} of {self.key_size})"
                size = "head size" if self.d_key is None else "d_key"
                yield f"rotary positions rotate pairs: {size} {rotated}{part} must be even and at least 2"
        if self.n_kv_heads and self.n_heads % self.n_kv_heads:
            fits = [h for h in range(1, self.n_heads + 1) if self.n_heads % h == 0]
            yield (
                f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}; accepted n_kv_heads: {fits}"
            )
        if self.position.kind == "sinusoidal" and self.d_model % 2:
            yield f"sinusoidal positions need an even d_model, not {self.d_model}"

    def _combinations(self) -> Iterator[str]:
        if self.attention.kind != "linear":
            return
        if self.position.kind in ("shaw", "t5", "alibi"):
            yield (
                f"{self.position.kind} positions change attention scores, which linear attention does not compute; "
                "accepted: none, sinusoidal, learned, recurrent, rotary"
            )
        if self.attention_dropout:
            yield "linear attention has no attention weights to drop; set attention_dropout to 0"
        if self.n_kv_heads:
            yield "linear attention has one key head per query head; remove n_kv_heads"


class TransformerConfig(BlockConfig):
    """Encoder and decoder (Vaswani et al. 2017); `preset = "big"` sets the sizes of the big model, unless given."""

    architecture: Literal["transformer"] = "transformer"
    encoder_layers: limits.Layers = 6
    decoder_layers: limits.Layers = 6
    tie: Tie = "all"


class DecoderOnlyConfig(BlockConfig):
    """A language model (Radford et al. 2018)."""

    architecture: Literal["decoder_only"] = "decoder_only"
    n_layers: limits.Layers = 6
    tie: Literal["all", "none"] = "all"


class EncoderOnlyConfig(BlockConfig):
    """Tagging, classification and masked language modelling (Devlin et al. 2019)."""

    architecture: Literal["encoder_only"] = "encoder_only"
    n_layers: limits.Layers = 6
    pooling: Literal["none", "first", "mean"] = Field(
        "none", description="none: one vector per token; otherwise one per text"
    )
    tie: Literal["all", "none"] = Field(
        "none", description="all: the output shares the embedding matrix (masked tokens)"
    )


class VisionConfig(BlockConfig):
    """A square image as a sequence of patches (Dosovitskiy et al. 2021)."""

    architecture: Literal["vision"] = "vision"
    position: Position = LearnedPosition()
    n_layers: limits.Layers = 6
    image_size: limits.Pixels = Field(8, description="height and width in pixels")
    patch: limits.Pixels = Field(2, description="height and width of a patch in pixels")
    channels: limits.Channels = 1

    @property
    def n_patches(self) -> int:
        return (self.image_size // self.patch) ** 2

    def _sizes(self) -> Iterator[str]:
        yield from super()._sizes()
        if self.image_size % self.patch:
            yield f"image_size {self.image_size} is not a multiple of patch {self.patch}"
        if isinstance(self.position, LearnedPosition) and self.position.max_len < self.n_patches + 1:
            yield (
                f"position.max_len {self.position.max_len} is too small for a class token and {self.n_patches} patches"
            )


class ConvolutionalConfig(Section):
    """Convolutional sequence to sequence (Gehring et al. 2017)."""

    architecture: Literal["convolutional"] = "convolutional"
    d_model: limits.Width = 512
    encoder_layers: limits.Layers = 4
    decoder_layers: limits.Layers = 4
    kernel: limits.Kernel = Field(3, description="kernel width; odd")
    dropout: limits.Dropout = 0.1
    max_positions: limits.Positions = Field(512, description="number of positions; longer input is rejected")
    tie: Tie = "all"

    @model_validator(mode="after")
    def _odd(self) -> ConvolutionalConfig:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel {self.kernel} must be odd, so that it is centered on a token")
        return self


ModelConfig = Annotated[
    TransformerConfig
    | DecoderOnlyConfig
    | EncoderOnlyConfig
    | VisionConfig
    | RNNConfig
    | GRUConfig
    | LSTMConfig
    | RecurrentLMConfig
    | RecurrentEncoderConfig
    | ConvolutionalConfig,
    Field(discriminator="architecture"),
]
