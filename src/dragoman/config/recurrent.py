"""`[model]`: recurrent encoder-decoders, language models and encoders, and their parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dragoman.config import limits
from dragoman.config.section import NotBoolean, Section, setting

Tie = Annotated[
    Literal["all", "target", "embeddings", "none"],
    setting(
        ...,
        "matrices that are shared (Press and Wolf 2017): all = both embeddings and the output layer; target = the "
        "target embedding and the output layer; embeddings = both embeddings; none",
        example="target",
    ),
]
TieOutput = Annotated[
    Literal["all", "none"],
    setting(..., "all: share the embeddings with the output layer (Press and Wolf 2017)", example="none"),
]
TieMasked = Annotated[
    Literal["all", "none"],
    setting(..., "all: share the embeddings with the output layer; for masked language modelling only", example="all"),
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
    activation: Literal["tanh", "relu"] = setting("tanh", "activation function of the hidden state", example="relu")


class GRUCell(Section):
    """Gated recurrent unit (Cho et al. 2014)."""

    kind: Literal["gru"] = "gru"


class LSTMCell(Section):
    """Long short-term memory (Hochreiter and Schmidhuber 1997)."""

    kind: Literal["lstm"] = "lstm"


RecurrentCell = Annotated[RNNCell | GRUCell | LSTMCell, Field(discriminator="kind")]


def _odd_halves(d_model: int, directions: int) -> Iterator[str]:
    if directions == 2 and d_model % 2:
        yield f"d_model {d_model} must be even, because two directions share it"


class NoAttention(Section):
    """No attention: the decoder receives only the last hidden state of the encoder."""

    kind: Literal["none"] = "none"
    context: Literal["bridge", "every_step"] = setting(
        "bridge",
        "input of the encoder state: bridge: initial state of the decoder; every_step: also every step",
        example="every_step",
    )


class BahdanauAttention(Section):
    """Additive attention (Bahdanau et al. 2015)."""

    kind: Literal["bahdanau"] = "bahdanau"


class LuongAttention(Section):
    """Multiplicative attention (Luong et al. 2015)."""

    kind: Literal["luong"] = "luong"
    score: Literal["dot", "general"] = setting(
        "general",
        "score of query and key: dot product, or bilinear form with a learned matrix (general)",
        example="dot",
    )


AttentionOfRecurrent = Annotated[NoAttention | BahdanauAttention | LuongAttention, Field(discriminator="kind")]


class RecurrentConfig(Section):
    """Settings of all recurrent architectures."""

    d_model: limits.Width = setting(512, "width of the embeddings and hidden states", example=256)
    encoder_layers: limits.Layers = setting(2, "number of encoder layers", example=3)
    decoder_layers: limits.Layers = setting(
        2, "number of decoder layers; the decoder runs once per output token", example=1
    )
    directions: Annotated[Literal[1, 2], NotBoolean] = setting(
        2, "2: bidirectional encoder, d_model / 2 per direction; 1: forward only", example=1
    )
    dropout: limits.Dropout = setting(0.1, "dropout before each layer and after the last decoder layer", example=0.3)
    attention: AttentionOfRecurrent = setting(
        BahdanauAttention(), "type of attention over the encoder states", example="luong"
    )
    initial_state: InitialState = setting(ZeroState(), "initial state of the encoder", example="learned")
    tie: Tie = "all"

    def _problems(self, stored: bool) -> Iterator[str]:
        yield from _odd_halves(self.d_model, self.directions)


class RNNConfig(RecurrentConfig):
    """Simple recurrent network (Elman 1990)."""

    architecture: Literal["rnn"] = "rnn"
    activation: Literal["tanh", "relu"] = setting("tanh", "activation function of the hidden state", example="relu")

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

    d_model: limits.Width = setting(512, "width of the embeddings and hidden states", example=256)
    n_layers: limits.Layers = setting(2, "number of layers", example=3)
    cell: RecurrentCell = setting(LSTMCell(), "recurrent cell", example="gru")
    initial_state: InitialState = setting(ZeroState(), "initial state", example="learned")
    dropout: limits.Dropout = setting(
        0.1, "dropout before each layer and after the last layer (Zaremba et al. 2014)", example=0.3
    )


class RecurrentLMConfig(_OneOutputPerInput):
    """Recurrent language model (Mikolov et al. 2010)."""

    architecture: Literal["recurrent_lm"] = "recurrent_lm"
    tie: TieOutput = "all"


class RecurrentEncoderConfig(_OneOutputPerInput):
    """Recurrent encoder for tagging, classification and masked language modelling (Huang et al. 2015, without CRF)."""

    architecture: Literal["recurrent_encoder"] = "recurrent_encoder"
    directions: Annotated[Literal[1, 2], NotBoolean] = setting(
        2, "2: bidirectional, d_model / 2 per direction; 1: forward only", example=1
    )
    pooling: Literal["none", "last", "mean"] = setting(
        "none",
        "none: one output per token; last: one output per text, from the final states; mean: one output per text, "
        "from the mean over its states",
        example="last",
    )
    tie: TieMasked = "none"

    def _problems(self, stored: bool) -> Iterator[str]:
        yield from _odd_halves(self.d_model, self.directions)
