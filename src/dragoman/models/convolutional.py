"""Convolutional sequence to sequence (Gehring et al. 2017).

All vectors have d_model features, so the paper's linear maps between sizes are not needed, except for the queries'.

Shapes: B sentences, K beams, N = B*K rows, S source length, T target length, D d_model.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dragoman.errors import UsageError
from dragoman.models.seq2seq import EncoderDecoder, Memory
from dragoman.nn.attention import padding_bias
from dragoman.nn.convolution import ConvolutionalDecoderLayer, ConvolutionalEncoderLayer, ConvolutionState
from dragoman.nn.fast import Dropout
from dragoman.nn.layers import Embedding
from dragoman.nn.record import Tap
from dragoman.nn.state import CrossKeyValues, DecodeState, LayerState

_STD = 0.1
"""Standard deviation of token and position embeddings (section 3.5); small, because scores are not scaled."""


class PositionedEmbedding(nn.Module):
    """The sum of token and position embeddings (section 3.1)."""

    def __init__(self, embedding: Embedding, max_positions: int, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = nn.Parameter(torch.empty(max_positions, embedding.weight.size(1)))
        self.dropout = Dropout(dropout)
        self.embedded = Tap("row", "position", "feature")
        self.positioned = Tap("row", "position", "feature")
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(self.positions, std=_STD, generator=generator)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Embed tokens (N, T) at positions first .. first + T - 1 and return (N, T, D).

        Raises UsageError if a position exceeds the table.
        """
        size, end = self.positions.size(0), first + tokens.size(1)
        if end > size:
            raise UsageError(
                f"a sequence of {end} tokens, including the end of sentence; this model has {size} positions; split "
                f"the text into shorter parts, or train with model.max_positions = {end} or more"
            )
        embedded = self.embedded(_STD * self.embedding(tokens))  # `Embedding` returns vectors of variance 1
        return self.dropout(self.positioned(embedded + self.positions[first:end]))


class ConvolutionalEncoder(nn.Module):
    """Embedding and convolutional layers."""

    def __init__(self, embedding: PositionedEmbedding, layers: Iterable[ConvolutionalEncoderLayer]) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)

    def forward(self, src: Tensor, src_mask: Tensor | None) -> Tensor:
        """Return (B, S, 2 D) for src (B, S): the keys z and the values sqrt(m) (z + e) of a sentence of m tokens."""
        embedded: Tensor = self.embedding(src)
        z = embedded  # (B, S, D)
        for layer in self.layers:
            z = layer(z, src_mask)
        length = z.new_full((z.size(0), 1), z.size(1)) if src_mask is None else src_mask.sum(1, keepdim=True)
        values = (z + embedded) * length.to(z.dtype).sqrt()[..., None]  # m sqrt(1/m) = sqrt(m)
        return torch.cat([z, values], dim=-1)


class ConvolutionalDecoder(nn.Module):
    """Embedding and causal convolutional layers, each with attention to the source."""

    def __init__(
        self, embedding: PositionedEmbedding, layers: Iterable[ConvolutionalDecoderLayer], dropout: float
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.dropout = Dropout(dropout)

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        """Return a state of N = B * beams rows: the last inputs of each layer, and the source for all of them."""
        source = CrossKeyValues(*memory.states.chunk(2, dim=-1))
        layers: list[LayerState] = []
        for layer in self.layers:
            assert isinstance(layer, ConvolutionalDecoderLayer)
            layers.append(ConvolutionState(source.keys.size(0) * beams, layer.conv.kernel, like=source.keys))
        return DecodeState([*layers, source], beams, memory_bias=padding_bias(memory.mask, source.keys.dtype))

    def forward(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """Return the hidden states (N, T, D) of the next tokens (N, T), and advance the state by T."""
        embedded: Tensor = self.embedding(tokens, state.length)
        bias = None if state.memory_bias is None else state.memory_bias[:, 0]  # (B, 1, S)
        *records, source = state.layers
        assert isinstance(source, CrossKeyValues)
        x = embedded
        for layer, record in zip(self.layers, records, strict=True):
            x = layer(x, embedded, record, source, bias)
        state.length += tokens.size(1)
        return self.dropout(x)


class Convolutional(EncoderDecoder):
    """A convolutional encoder and decoder with an output projection; `Memory.states` are (B, S, 2 D)."""

    architecture = "convolutional"
    encoder: ConvolutionalEncoder
    decoder: ConvolutionalDecoder
