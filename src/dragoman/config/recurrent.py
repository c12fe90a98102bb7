"""`[model]`: recurrent networks, from sequence to sequence or with one output per input, and their parts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from dragoman.config import limits
from dragoman.config.section import NotBoolean, Section

__all__ = [
    "BahdanauAttention",
    "GRUCell",
    "GRUConfig",
    "InitialState",
    "LSTMCell",
    "LSTMConfig",
    "LearnedState",
    "LuongAttention",
    "NoAttention",
    "RNNCell",
    "RNNConfig",
    "RecurrentCell",
    "RecurrentConfig",
    "RecurrentEncoderConfig",
    "RecurrentLMConfig",
    "ZeroState",
]


Tie = Annotated[
    Literal["all", "target", "none"],
    Field(
        description="embeddings that share the output matrix (Press and Wolf 2017): both, those of the target, none",
        examples=["target"],
    ),
]


class ZeroState(Section):
    """Zeros."""

    kind: Literal["zeros"] = "zeros"


class LearnedState(Section):
    """A parameter per reading direction and layer, which starts at 0."""

    kind: Literal["learned"] = "learned"


InitialState = Annotated[ZeroState | LearnedState, Field(discriminator="kind")]


class RNNCell(Section):
    """Simple recurrent network (Elman 1990)."""

    kind: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = Field(
        "tanh", description="nonlinearity of the hidden state", examples=["relu"]
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
    """The decoder receives only the last hidden state of the encoder."""

    kind: Literal["none"] = "none"
    context: Literal["bridge", "every_step"] = Field(
        "bridge",
        description="where the decoder reads the encoder: in its initial state only, or also at every step",
        examples=["every_step"],
    )


class BahdanauAttention(Section):
    """Attention by a small network of query and key (Bahdanau et al. 2015)."""

    kind: Literal["bahdanau"] = "bahdanau"


class LuongAttention(Section):
    """Attention by a product of query and key (Luong et al. 2015)."""

    kind: Literal["luong"] = "luong"
    score: Literal["dot", "general"] = Field(
        "general",
        description="product of query and key: plain, or with a learned matrix between them",
        examples=["dot"],
    )


AttentionOfRecurrent = Annotated[NoAttention | BahdanauAttention | LuongAttention, Field(discriminator="kind")]


class RecurrentConfig(Section):
    """Settings of all recurrent architectures."""

    d_model: limits.Width = Field(512, description="width of embeddings and hidden states", examples=[256])
    encoder_layers: limits.Layers = Field(2, description="layers of the encoder", examples=[3])
    decoder_layers: limits.Layers = Field(
        2, description="layers of the decoder, which runs once per output token", examples=[1]
    )
    directions: Annotated[Literal[1, 2], NotBoolean] = Field(
        2, description="reading directions of the encoder; with 2, each has half of d_model", examples=[1]
    )
    dropout: limits.Dropout = Field(
        0.1, description="dropout before each layer and after the last of the decoder", examples=[0.3]
    )
    attention: AttentionOfRecurrent = Field(
        BahdanauAttention(), description="how the decoder reads the encoder", examples=["luong"]
    )
    initial_state: InitialState = Field(
        ZeroState(), description="state of the encoder before the first token", examples=["learned"]
    )
    tie: Tie = "all"

    @model_validator(mode="after")
    def _halves(self) -> RecurrentConfig:
        require_even(self.d_model, self.directions)
        return self


class RNNConfig(RecurrentConfig):
    """Simple recurrent network (Elman 1990)."""

    architecture: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = Field(
        "tanh", description="nonlinearity of the hidden state", examples=["relu"]
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
    """Settings of recurrent networks with one stack."""

    d_model: limits.Width = Field(512, description="width of embeddings and hidden states", examples=[256])
    n_layers: limits.Layers = Field(2, description="layers of the model", examples=[3])
    cell: RecurrentCell = Field(LSTMCell(), description="recurrent cell", examples=["gru"])
    initial_state: InitialState = Field(ZeroState(), description="state before the first token", examples=["learned"])
    dropout: limits.Dropout = Field(
        0.1, description="dropout before each layer and after the last (Zaremba et al. 2014)", examples=[0.3]
    )


class RecurrentLMConfig(_OneOutputPerInput):
    """A recurrent language model (Mikolov et al. 2010)."""

    architecture: Literal["recurrent_lm"] = "recurrent_lm"
    tie: Literal["all", "none"] = Field(
        "all", description="all: the output shares the embedding matrix (Press and Wolf 2017)", examples=["none"]
    )


class RecurrentEncoderConfig(_OneOutputPerInput):
    """Recurrent tagging, classification and masked language modelling (Huang et al. 2015, without the CRF)."""

    architecture: Literal["recurrent_encoder"] = "recurrent_encoder"
    directions: Annotated[Literal[1, 2], NotBoolean] = Field(
        2, description="reading directions; with 2, each has half of d_model", examples=[1]
    )
    pooling: Literal["none", "last", "mean"] = Field(
        "none",
        description="none: one output per token; last: one per text, from the final state of each direction; mean: one "
        "per text, from all states",
        examples=["last"],
    )
    tie: Literal["all", "none"] = Field(
        "none", description="all: the output shares the embedding matrix, for masked tokens only", examples=["all"]
    )

    @model_validator(mode="after")
    def _halves(self) -> RecurrentEncoderConfig:
        require_even(self.d_model, self.directions)
        return self
