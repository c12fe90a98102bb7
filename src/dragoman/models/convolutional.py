"""Convolutional sequence to sequence learning (Gehring et al. 2017): encoder, decoder, and both as a `Model`.

All vectors are d_model wide, so that the paper's linear maps between widths fall away but for the queries'.

Letters: B sentences, K beams, N = B*K rows, S source length, T target length, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dragoman.errors import UsageError
from dragoman.models.seq2seq import Memory, Model
from dragoman.nn.attention import mask_to_bias
from dragoman.nn.convolution import (
    ConvolutionalDecoderLayer,
    ConvolutionalEncoderLayer,
    GatedConvolution,
    LastInputs,
    MultiStepAttention,
)
from dragoman.nn.dropout import Dropout
from dragoman.nn.layers import Embedding
from dragoman.nn.state import CrossKeyValues, DecodeState, LayerState
from dragoman.nn.taps import Tap

if TYPE_CHECKING:
    from dragoman.config import ConvolutionalConfig

__all__ = ["Convolutional", "ConvolutionalDecoder", "ConvolutionalEncoder", "PlacedEmbedding", "convolutional_model"]

_STD = 0.1
"""Of both kinds of embedding (section 3.5): the scores are not divided by sqrt(D), so they must start small."""


class PlacedEmbedding(nn.Module):
    """Word and position embeddings, added (section 3.1)."""

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
        """tokens (N, T) at positions first ... first + T - 1 -> (N, T, D).

        Raises UsageError for a position that is not in the table.
        """
        most, end = self.positions.size(0), first + tokens.size(1)
        if end > most:
            raise UsageError(
                f"a sequence of {end} tokens: this model has learned {most} positions, end of sentence included; "
                f"split the text into shorter pieces, or train with model.max_positions = {end} or more"
            )
        # An `Embedding` comes out with variance 1.
        embedded = self.embedded(_STD * self.embedding(tokens))
        out: Tensor = self.dropout(self.positioned(embedded + self.positions[first:end]))
        return out


class ConvolutionalEncoder(nn.Module):
    """Embeddings and a stack of convolutions."""

    def __init__(self, embedding: PlacedEmbedding, layers: Iterable[ConvolutionalEncoderLayer]) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)

    def forward(self, src: Tensor, src_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """src (B, S), src_mask (B, S) or None -> outputs z and embeddings e, (B, S, D) each."""
        embedded: Tensor = self.embedding(src)
        x = embedded
        for layer in self.layers:
            x = layer(x, src_mask)
        return x, embedded


class ConvolutionalDecoder(nn.Module):
    """As the encoder, with a look at the source in every layer and none at later positions."""

    def __init__(self, embedding: PlacedEmbedding, layers: Iterable[ConvolutionalDecoderLayer], dropout: float) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.dropout = Dropout(dropout)

    def start(self, memory: Memory, beams: int) -> DecodeState:
        """A state for N = B * beams rows: the last inputs of each layer, and the source's vectors for all of them."""
        source = CrossKeyValues(*memory.states.chunk(2, dim=-1))
        layers: list[LayerState] = []
        for layer in self.layers:
            assert isinstance(layer, ConvolutionalDecoderLayer)
            layers.append(LastInputs(source.keys.size(0) * beams, layer.conv.kernel, like=source.keys))
        mask = memory.mask
        bias = None if mask is None else mask_to_bias(mask[:, None, None, :], source.keys.dtype)  # (B, 1, 1, S)
        return DecodeState([*layers, source], beams, memory_bias=bias)

    def forward(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """tokens (N, T), the next T of every row -> hidden states (N, T, D)."""
        embedded: Tensor = self.embedding(tokens, state.length)
        bias = None if state.memory_bias is None else state.memory_bias[:, 0]  # (B, 1, S)
        *records, source = state.layers
        assert isinstance(source, CrossKeyValues)
        x = embedded
        for layer, last in zip(self.layers, records, strict=True):
            x = layer(x, embedded, last, source, bias)
        state.length += tokens.size(1)
        out: Tensor = self.dropout(x)
        return out


class Convolutional(Model):
    """Encoder and decoder with an output layer.

    Its `Memory.states` are (B, S, 2 D): the keys z, behind them the values sqrt(m) (z + e) of a sentence of m words.
    """

    def __init__(self, encoder: ConvolutionalEncoder, decoder: ConvolutionalDecoder, output: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output

    def encode(self, src: Tensor, src_mask: Tensor | None) -> Memory:
        z, e = self.encoder(src, src_mask)
        words = z.new_full((z.size(0), 1), z.size(1)) if src_mask is None else src_mask.sum(1, keepdim=True)
        values = (z + e) * words.to(z.dtype).sqrt()[..., None]  # m sqrt(1/m) = sqrt(m), on all sums at once
        return Memory(torch.cat([z, values], dim=-1), src_mask)

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        return self.decoder.start(memory, beams)

    def decode_hidden(self, tokens: Tensor, state: DecodeState) -> Tensor:
        hidden: Tensor = self.decoder(tokens, state)
        return hidden


def convolutional_model(
    config: ConvolutionalConfig, src_embedding: Embedding, tgt_embedding: Embedding, output: nn.Module
) -> Model:
    """The model of a configuration; source and target may share their embedding."""

    def conv() -> GatedConvolution:
        return GatedConvolution(config.d_model, config.kernel, config.dropout)

    def embedding(words: Embedding) -> PlacedEmbedding:
        return PlacedEmbedding(words, config.max_positions, config.dropout)

    encoder_layers = [ConvolutionalEncoderLayer(conv()) for _ in range(config.encoder_layers)]
    decoder_layers = [
        ConvolutionalDecoderLayer(conv(), MultiStepAttention(config.d_model)) for _ in range(config.decoder_layers)
    ]
    encoder = ConvolutionalEncoder(embedding(src_embedding), encoder_layers)
    decoder = ConvolutionalDecoder(embedding(tgt_embedding), decoder_layers, config.dropout)
    return Convolutional(encoder, decoder, output)
