"""Recurrent sequence to sequence: the last hidden state as the only context, or attention over all of them.

Sutskever et al. 2014 and Cho et al. 2014 (`none`), Bahdanau et al. 2015, Luong et al. 2015; vanilla RNN, GRU or LSTM.

Letters: B sentences, K beams, N = B*K rows, S source length, T target length, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dragoman.models.seq2seq import Memory, Model
from dragoman.nn.attention import mask_to_bias
from dragoman.nn.dropout import Dropout
from dragoman.nn.layers import Embedding
from dragoman.nn.recurrent import (
    GRU,
    LSTM,
    Cell,
    PlainDecoderLayer,
    RecurrentDecoderLayer,
    RecurrentEncoderLayer,
    State,
    VanillaRNN,
    backwards,
)
from dragoman.nn.recurrent_attention import AdditiveAttention, BahdanauLayer, DotAttention, GeneralAttention, LuongLayer
from dragoman.nn.state import DecodeState
from dragoman.nn.taps import Tap

if TYPE_CHECKING:
    from dragoman.config import GRUConfig, LSTMConfig, RNNConfig

__all__ = ["Bridge", "Recurrent", "RecurrentDecoder", "RecurrentEncoder", "recurrent_model"]


class RecurrentEncoder(nn.Module):
    """Embeddings and a stack of layers, with dropout before each."""

    def __init__(self, embedding: Embedding, layers: Iterable[RecurrentEncoderLayer], dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.embedded = Tap("row", "position", "feature")

    def forward(self, src: Tensor, src_mask: Tensor | None) -> Tensor:
        """src (B, S), src_mask (B, S) or None -> (B, S, D)."""
        order = backwards(src_mask, src)
        x: Tensor = self.embedded(self.embedding(src))
        for layer in self.layers:
            x = layer(self.dropout(x), order)
        return x


class Bridge(nn.Module):
    """The decoder's first states from the last ones of the encoder: tanh(W h + b) (Bahdanau et al. 2015, A.2.2).

    h is what each direction of the top layer knew when it had read the whole sentence: ahead at the last word, back at
    the first one (the paper takes the latter only).  Both stand in the memory: no other tensor travels to the decoder.
    """

    def __init__(self, d_model: int, directions: int, layers: int, parts: int) -> None:
        """`layers` of the decoder with `parts` tensors in a state each."""
        super().__init__()
        self.directions = directions
        self.parts = parts
        self.summary = Tap("row", "feature")
        self.linear = nn.Linear(d_model, layers * parts * d_model)

    def forward(self, memory: Memory) -> list[State]:
        """memory.states (B, S, D) -> a state a layer, (B, D) each part."""
        states, mask = memory.states, memory.mask
        b, s, d = states.shape
        end = states.new_full((b,), s, dtype=torch.long) if mask is None else mask.sum(1)
        last = states[torch.arange(b, device=states.device), end - 1]  # (B, D)
        if self.directions == 2:
            last = torch.cat([last[:, : d // 2], states[:, 0, d // 2 :]], dim=-1)
        vectors = torch.tanh(self.linear(self.summary(last))).split(d, dim=-1)
        return [vectors[i : i + self.parts] for i in range(0, len(vectors), self.parts)]


class RecurrentDecoder(nn.Module):
    """Embeddings and a stack of layers, the first of which may attend, with dropout before each and after the last.

    With attention in the first layer only, the others run whole sequences at once (Wu et al. 2016 do the same).
    """

    def __init__(
        self, embedding: Embedding, layers: Iterable[RecurrentDecoderLayer], bridge: Bridge, dropout: float
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.bridge = bridge
        self.embedded = Tap("row", "position", "feature")

    def start(self, memory: Memory, beams: int) -> DecodeState:
        """A state for N = B * beams rows; it has room for targets of any length."""
        records = []
        for layer, first in zip(self.layers, self.bridge(memory), strict=True):
            assert isinstance(layer, RecurrentDecoderLayer)
            rows = tuple(part.repeat_interleave(beams, dim=0) for part in first)  # (N, D)
            records.append(layer.start(memory.states, rows))
        mask = memory.mask
        bias = None if mask is None else mask_to_bias(mask[:, None, None, :], memory.states.dtype)  # (B, 1, 1, S)
        return DecodeState(records, beams, memory_bias=bias)

    def forward(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """tokens (N, T), the next T of every row -> hidden states (N, T, D)."""
        x: Tensor = self.embedded(self.embedding(tokens))
        for layer, record in zip(self.layers, state.layers, strict=True):
            x = layer(self.dropout(x), record, state.memory_bias)
        state.length += tokens.size(1)
        out: Tensor = self.dropout(x)
        return out


class Recurrent(Model):
    """Encoder and decoder with an output layer."""

    def __init__(self, encoder: RecurrentEncoder, decoder: RecurrentDecoder, output: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output

    def encode(self, src: Tensor, src_mask: Tensor | None) -> Memory:
        return Memory(self.encoder(src, src_mask), src_mask)

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        return self.decoder.start(memory, beams)

    def decode_hidden(self, tokens: Tensor, state: DecodeState) -> Tensor:
        hidden: Tensor = self.decoder(tokens, state)
        return hidden


def recurrent_model(
    config: RNNConfig | GRUConfig | LSTMConfig, src_embedding: Embedding, tgt_embedding: Embedding, output: nn.Module
) -> Model:
    """The model of a configuration; with two directions each has half of d_model, so that D is the same everywhere."""
    d, half = config.d_model, config.d_model // config.directions
    encoder_layers = [
        RecurrentEncoderLayer(*(_cell(config, d, half) for _ in range(config.directions)))
        for _ in range(config.encoder_layers)
    ]
    decoder_layers = [
        _attending(config),
        *(PlainDecoderLayer(_cell(config, d, d)) for _ in range(config.decoder_layers - 1)),
    ]
    bridge = Bridge(d, config.directions, config.decoder_layers, decoder_layers[0].cell.parts)
    return Recurrent(
        RecurrentEncoder(src_embedding, encoder_layers, config.dropout),
        RecurrentDecoder(tgt_embedding, decoder_layers, bridge, config.dropout),
        output,
    )


def _cell(config: RNNConfig | GRUConfig | LSTMConfig, d_in: int, d_model: int) -> Cell:
    if config.architecture == "rnn":
        return VanillaRNN(d_in, d_model, config.activation)
    return GRU(d_in, d_model) if config.architecture == "gru" else LSTM(d_in, d_model)


def _attending(config: RNNConfig | GRUConfig | LSTMConfig) -> RecurrentDecoderLayer:
    """The decoder's first layer."""
    d, attention = config.d_model, config.attention
    if attention.kind == "none":
        return PlainDecoderLayer(_cell(config, d, d))
    cell = _cell(config, 2 * d, d)  # [word; what is fed back]
    if attention.kind == "bahdanau":
        return BahdanauLayer(cell, AdditiveAttention(d), d)
    return LuongLayer(cell, DotAttention() if attention.score == "dot" else GeneralAttention(d), d)
