"""`[model]`: architectures and the variants of their parts.

A variant is a section of its own, selected by `kind` (an architecture by `architecture`), with the keys that it uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dragoman.config import limits
from dragoman.config.positions import LearnedPosition, Position, RotaryPosition, SinusoidalPosition, position_kinds
from dragoman.config.recurrent import (
    GRUConfig,
    LSTMConfig,
    RecurrentEncoderConfig,
    RecurrentLMConfig,
    RNNConfig,
    Tie,
    TieMasked,
    TieOutput,
)
from dragoman.config.section import Section


class LayerNormConfig(Section):
    """Zero mean and unit variance per token, with gain and bias (Ba et al. 2016)."""

    kind: Literal["layer"] = "layer"
    eps: limits.NormEpsilon = Field(1e-5, description="added to the variance before the square root", examples=[1e-5])


class RMSNormConfig(Section):
    """Unit root mean square per token, with gain (Zhang and Sennrich 2019)."""

    kind: Literal["rms"] = "rms"
    eps: limits.NormEpsilon = Field(
        1e-6, description="added to the mean square before the square root", examples=[1e-5]
    )


class BatchNormConfig(Section):
    """Zero mean and unit variance per feature, over the tokens of a batch (Ioffe and Szegedy 2015)."""

    kind: Literal["batch"] = "batch"
    eps: limits.NormEpsilon = Field(1e-5, description="added to the variance before the square root", examples=[1e-5])
    momentum: limits.Momentum = Field(
        0.1, description="weight of the current batch in the running mean and variance", examples=[0.05]
    )


Norm = Annotated[LayerNormConfig | RMSNormConfig | BatchNormConfig, Field(discriminator="kind")]


class SoftmaxAttention(Section):
    """Scaled dot-product attention (Vaswani et al. 2017, equation 1)."""

    kind: Literal["softmax"] = "softmax"


class LinearAttention(Section):
    """Self-attention without softmax (Katharopoulos et al. 2020); cross-attention still uses softmax."""

    kind: Literal["linear"] = "linear"
    feature_map: Literal["elu", "relu", "softmax"] = Field(
        "elu", description="feature map of queries and keys", examples=["relu"]
    )


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

    d_model: limits.Width = Field(512, description="width of the embeddings and of all layers", examples=[256])
    d_ff: limits.FeedForward = Field(
        2048, description="hidden width of the feed-forward layers, usually 2 to 4 times d_model", examples=[1024]
    )
    n_heads: limits.Heads = Field(
        8, description="number of attention heads; d_model must be a multiple, or d_value set", examples=[4]
    )
    n_kv_heads: limits.Heads | None = Field(
        None,
        description="number of key and value heads: 1 = multi-query (Shazeer 2019), more = grouped-query attention "
        "(Ainslie et al. 2023); default: n_heads",
        examples=[2],
    )
    d_key: limits.KeySize | None = Field(
        None,
        description="width of queries and keys per head; default: the width of values",
        examples=[16],
    )
    d_value: limits.ValueSize | None = Field(
        None,
        description="width of values per head, for any n_heads (T5, Raffel et al. 2020); default: d_model / n_heads",
        examples=[64],
    )
    dropout: limits.Dropout = Field(
        0.1, description="dropout of sub-layer outputs and embeddings (Vaswani et al. 2017, 5.4)", examples=[0.3]
    )
    attention_dropout: limits.Dropout = Field(0.0, description="dropout of the attention weights", examples=[0.1])
    activation_dropout: limits.Dropout = Field(
        0.0, description="dropout after the activation of the feed-forward layers", examples=[0.1]
    )
    order: Literal["post", "pre"] = Field(
        "post",
        description="post: normalize after each residual connection (Vaswani et al. 2017); pre: normalize before each "
        "sub-layer, which is more stable in training (Xiong et al. 2020)",
        examples=["pre"],
    )
    norm: Norm = Field(LayerNormConfig(), description="normalization layer", examples=["rms"])
    normalize_embeddings: bool = Field(
        False,
        description="normalize the sum of embedding and position before the first layer, as BERT and BART do",
        examples=[True],
    )
    attention: Attention = Field(SoftmaxAttention(), description="type of self-attention", examples=["linear"])
    position: Position = Field(SinusoidalPosition(), description="position encoding", examples=["rotary"])
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid"] = Field(
        "relu", description="activation function of the feed-forward layers", examples=["silu"]
    )
    gated: bool = Field(
        False,
        description="gated feed-forward layers (Shazeer 2020), with 1.5 times the parameters for the same d_ff",
        examples=[True],
    )
    bias: bool = Field(True, description="use biases in attention and feed-forward layers", examples=[False])

    @model_validator(mode="after")
    def _fits(self) -> BlockConfig:
        if problems := [*self._sizes(), *self._combinations()]:
            raise ValueError("; ".join(problems))
        return self

    @property
    def d_head(self) -> int:
        """Features of a value per head."""
        return self.d_value or self.d_model // self.n_heads

    @property
    def key_size(self) -> int:
        """Features of a query or key per head."""
        return self.d_key or self.d_head

    def _sizes(self) -> Iterator[str]:
        if self.d_value is None and self.d_model % self.n_heads:
            fits = [h for h in range(1, min(self.d_model, 64) + 1) if self.d_model % h == 0]
            yield (
                f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}; accepted n_heads: {fits}, or any "
                "if d_value is set"
            )
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
        if self.position.acts_on == "scores":
            accepted = ", ".join(position_kinds("nothing", "embeddings", "queries"))
            yield (
                f"{self.position.kind} positions change attention scores, which linear attention does not compute; "
                f"accepted: {accepted}"
            )
        if self.attention_dropout:
            yield "linear attention has no attention weights to drop; set attention_dropout to 0"
        if self.n_kv_heads:
            yield "linear attention has one key head per query head; remove n_kv_heads"


OutputBias = Annotated[
    bool,
    Field(description="add a bias per token or label to the logits, as Marian, BERT and ViT do", examples=[True]),
]


class TokenConfig(BlockConfig):
    """Settings of Transformers that read tokens, with the conventions of public checkpoints."""

    scale_embeddings: bool = Field(
        True, description="multiply embeddings by sqrt(d_model) (Vaswani et al. 2017, 3.4)", examples=[False]
    )
    output_bias: OutputBias = False


class TransformerConfig(TokenConfig):
    """Encoder-decoder (Vaswani et al. 2017); `preset` selects the sizes of a published model."""

    architecture: Literal["transformer"] = "transformer"
    encoder_layers: limits.Layers = Field(6, description="number of encoder layers", examples=[4])
    decoder_layers: limits.Layers = Field(
        6, description="number of decoder layers; the decoder runs once per output token", examples=[3]
    )
    decoder_self: Literal["attention", "ssru"] = Field(
        "attention",
        description="what connects the positions of the decoder: self-attention, or the Simpler Simple Recurrent "
        "Unit (SSRU, Kim et al. 2019), whose state has the same size at every length",
        examples=["ssru"],
    )
    tie: Tie = "all"

    def _combinations(self) -> Iterator[str]:
        yield from super()._combinations()
        if self.decoder_self == "ssru" and self.position.acts_on in ("queries", "scores"):
            accepted = ", ".join(position_kinds("nothing", "embeddings"))
            yield (
                f'{self.position.kind} positions act on self-attention, which a decoder with decoder_self = "ssru" '
                f"does not have; accepted: {accepted}"
            )


class DecoderOnlyConfig(TokenConfig):
    """Language model (Radford et al. 2018)."""

    architecture: Literal["decoder_only"] = "decoder_only"
    n_layers: limits.Layers = Field(6, description="number of layers", examples=[4])
    tie: TieOutput = "all"


class EncoderOnlyConfig(TokenConfig):
    """Encoder for tagging, classification and masked language modelling (Devlin et al. 2019)."""

    architecture: Literal["encoder_only"] = "encoder_only"
    n_layers: limits.Layers = Field(6, description="number of layers", examples=[4])
    pooling: Literal["none", "first", "mean"] = Field(
        "none",
        description="none: one output per token; first: one output per text, from its first token; mean: one output "
        "per text, from the mean over its tokens",
        examples=["mean"],
    )
    head: Literal["linear", "tanh", "transform"] = Field(
        "linear",
        description="what the output layer reads. linear: the output of the encoder; tanh: after a dense layer with "
        "tanh, BERT's pooler; transform: after a dense layer with `activation` and `norm`, for masked text",
        examples=["transform"],
    )
    tie: TieMasked = "none"


class VisionConfig(BlockConfig):
    """Image classification from a sequence of patches (Dosovitskiy et al. 2021)."""

    architecture: Literal["vision"] = "vision"
    position: Position = Field(
        LearnedPosition(), description="position encoding of the patches", examples=["sinusoidal"]
    )
    n_layers: limits.Layers = Field(6, description="number of layers", examples=[4])
    image_size: limits.Pixels = Field(8, description="height and width of an image in pixels", examples=[28])
    patch: limits.Pixels = Field(
        2, description="height and width of a patch in pixels; image_size must be a multiple", examples=[4]
    )
    channels: limits.Channels = Field(1, description="number of channels: 1 = grey, 3 = colour", examples=[3])
    output_bias: OutputBias = False

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
    """Convolutional encoder-decoder (Gehring et al. 2017)."""

    architecture: Literal["convolutional"] = "convolutional"
    d_model: limits.Width = Field(512, description="width of the embeddings and of all layers", examples=[256])
    encoder_layers: limits.Layers = Field(4, description="number of encoder layers", examples=[6])
    decoder_layers: limits.Layers = Field(
        4, description="number of decoder layers; the decoder runs once per output token", examples=[3]
    )
    kernel: limits.Kernel = Field(3, description="width of the convolutions in tokens; odd", examples=[5])
    dropout: limits.Dropout = Field(
        0.1, description="dropout of the embeddings and of the input of each layer", examples=[0.2]
    )
    max_positions: limits.Positions = Field(
        512, description="maximum number of positions; longer input is rejected", examples=[1024]
    )
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
