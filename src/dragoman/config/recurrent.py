"""`[model]`: recurrent encoder-decoders, language models and encoders, and their parts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from dragoman.config import limits
from dragoman.config.section import NotBoolean, Section

Tie = Annotated[
    Literal["all", "target", "embeddings", "none"],
    Field(
        description="matrices that are shared (Press and Wolf 2017): all = both embeddings and the output layer; "
        "target = the target embedding and the output layer; embeddings = both embeddings; none",
        examples=["target"],
    ),
]
TieOutput = Annotated[
    Literal["all", "none"],
    Field(description="all: share the embeddings with the output layer (Press and Wolf 2017)", examples=["none"]),
]
TieMasked = Annotated[
    Literal["all", "none"],
    Field(
        description="all: share the embeddings with the output layer; for masked language modelling only",
        examples=["all"],
    ),
]


class ZeroState(Section):
    """A state of zeros."""

    kind: Literal["zeros"] = "zeros"


class LearnedState(Section):
    """A learned state per direction and layer, initialized to zero."""

    kind: Literal["learned"] = "learned"


InitialState = Annotated[ZeroState | LearnedState, Field(discriminator="kind")]


class RNNCell(Section):
    """Simple recurrent network (Elman 1990)."""

    kind: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = Field(
        "tanh", description="activation function of the hidden state", examples=["relu"]
    )


class GRUCell(Section):
    """Gated recurrent unit (Cho et al. 2014)."""

    kind: Literal["gru"] = "gru"


class LSTMCell(Section):
    """Long short-term memory (Hochreiter and Schmidhuber 1997)."""

    kind: Literal["lstm"] = "lstm"


RecurrentCell = Annotated[RNNCell | GRUCell | LSTMCell, Field(discriminator="kind")]


def require_even(d_model: int, directions: int) -> None:
    """Raise ValueError if two directions cannot have half of d_model each."""
    if directions == 2 and d_model % 2:
        raise ValueError(f"d_model {d_model} must be even, because two directions share it")


class NoAttention(Section):
    """No attention: the decoder receives only the last hidden state of the encoder."""

    kind: Literal["none"] = "none"
    context: Literal["bridge", "every_step"] = Field(
        "bridge",
        description="input of the encoder state: bridge: initial state of the decoder; every_step: also every step",
        examples=["every_step"],
    )


class BahdanauAttention(Section):
    """Additive attention (Bahdanau et al. 2015)."""

    kind: Literal["bahdanau"] = "bahdanau"


class LuongAttention(Section):
    """Multiplicative attention (Luong et al. 2015)."""

    kind: Literal["luong"] = "luong"
    score: Literal["dot", "general"] = Field(
        "general",
        description="score of query and key: dot product, or bilinear form with a learned matrix (general)",
        examples=["dot"],
    )


AttentionOfRecurrent = Annotated[NoAttention | BahdanauAttention | LuongAttention, Field(discriminator="kind")]


class RecurrentConfig(Section):
    """Settings of all recurrent architectures."""

    d_model: limits.Width = Field(512, description="width of the embeddings and hidden states", examples=[256])
    encoder_layers: limits.Layers = Field(2, description="number of encoder layers", examples=[3])
    decoder_layers: limits.Layers = Field(
        2, description="number of decoder layers; the decoder runs once per output token", examples=[1]
    )
    directions: Annotated[Literal[1, 2], NotBoolean] = Field(
        2, description="2: bidirectional encoder, d_model / 2 per direction; 1: forward only", examples=[1]
    )
    dropout: limits.Dropout = Field(
        0.1, description="dropout before each layer and after the last decoder layer", examples=[0.3]
    )
    attention: AttentionOfRecurrent = Field(
        BahdanauAttention(), description="type of attention over the encoder states", examples=["luong"]
    )
    initial_state: InitialState = Field(ZeroState(), description="initial state of the encoder", examples=["learned"])
    tie: Tie = "all"

    @model_validator(mode="after")
    def _halves(self) -> RecurrentConfig:
        require_even(self.d_model, self.directions)
        return self


class RNNConfig(RecurrentConfig):
    """Simple recurrent network (Elman 1990)."""

    architecture: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = Field(
        "tanh", description="activation function of the hidden state", examples=["relu"]
    )

    @property
    def cell(self) -> RNNCell:
        return RNNCell(activation=self.activation)


class GRUConfig(RecurrentConfig):
    """Gated recurrent units (Cho et al. 2014)."""

    architecture: Literal["gru"] = "gru"
    cell: ClassVar[GRUCell] = GRUCell()


class LSTMConfig(RecurrentConfig):
    """Long short-term memory (Hochreiter and Schmidhuber 1997)."""

    architecture: Literal["lstm"] = "lstm"
    cell: ClassVar[LSTMCell] = LSTMCell()


class _OneOutputPerInput(Section):
    """Settings of recurrent networks with one stack of layers."""

    d_model: limits.Width = Field(512, description="width of the embeddings and hidden states", examples=[256])
    n_layers: limits.Layers = Field(2, description="number of layers", examples=[3])
    cell: RecurrentCell = Field(LSTMCell(), description="recurrent cell", examples=["gru"])
    initial_state: InitialState = Field(ZeroState(), description="initial state", examples=["learned"])
    dropout: limits.Dropout = Field(
        0.1, description="dropout before each layer and after the last layer (Zaremba et al. 2014)", examples=[0.3]
    )


class RecurrentLMConfig(_OneOutputPerInput):
    """Recurrent language model (Mikolov et al. 2010)."""

    architecture: Literal["recurrent_lm"] = "recurrent_lm"
    tie: TieOutput = "all"


class RecurrentEncoderConfig(_OneOutputPerInput):
    """Recurrent encoder for tagging, classification and masked language modelling (Huang et al. 2015, without CRF)."""

    architecture: Literal["recurrent_encoder"] = "recurrent_encoder"
    directions: Annotated[Literal[1, 2], NotBoolean] = Field(
        2, description="2: bidirectional, d_model / 2 per direction; 1: forward only", examples=[1]
    )
    pooling: Literal["none", "last", "mean"] = Field(
        "none",
        description="none: one output per token; last: one output per text, from the final states; mean: one output "
        "per text, from the mean over its states",
        examples=["last"],
    )
    tie: TieMasked = "none"

    @model_validator(mode="after")
    def _halves(self) -> RecurrentEncoderConfig:
        require_even(self.d_model, self.directions)
        return self
