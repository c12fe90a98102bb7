"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017): encoder, decoder, and both as a `Model`.

Letters: B sentences, K beams, N = B*K rows, S source length, T target length, Tk keys so far, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.models.seq2seq import Memory, Model
from dragoman.nn.attention import causal_bias, mask_to_bias
from dragoman.nn.dropout import Dropout
from dragoman.nn.layers import DecoderLayer, Embedding, EncoderLayer
from dragoman.nn.positions import Positions
from dragoman.nn.state import CrossKeyValues, DecodeState, SelfState
from dragoman.nn.taps import Tap

__all__ = ["Decoder", "Encoder", "Transformer", "order_bias"]


def order_bias(
    positions: Positions, pos: Tensor, keys: int, dtype: torch.dtype, needs_future_mask: bool
) -> tuple[Tensor | None, bool]:
    """The bias added to the scores of the positions `pos` (T,) against all `keys`, and whether "causal" does the rest.

    (H or 1, T, Tk) or None: where only the order counts, attention makes it, or has it already.
    needs_future_mask: whether keys exist beyond the last of pos.
    """
    k_pos = torch.arange(keys, device=pos.device)
    static = positions.static_bias(pos, k_pos)  # (H, T, Tk)
    if pos.numel() == 1 and not needs_future_mask:
        return static, False
    if static is None and not needs_future_mask:
        return None, True
    order = causal_bias(pos, k_pos, dtype)
    return order if static is None else order + static, False


@dataclass
class _Record:
    """A decoder layer's memory: what its self-attention keeps (None while nothing is kept) and the encoder's."""

    own: SelfState | None
    cross: CrossKeyValues

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        if self.own is not None:
            self.own.select(rows, sentences, length)
        self.cross.select(rows, sentences, length)

    def nbytes(self) -> int:
        return self.cross.nbytes() + (0 if self.own is None else self.own.nbytes())


class Encoder(nn.Module):
    """Embeddings, positions, a stack of layers, and with pre-norm a last norm."""

    def __init__(
        self,
        embedding: Embedding,
        positions: Positions,
        layers: Iterable[EncoderLayer],
        final_norm: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.embedded = Tap("row", "position", "feature")
        self.positioned = Tap("row", "position", "feature")

    def forward(self, src: Tensor, src_mask: Tensor | None) -> Tensor:
        """src (B, S), src_mask (B, S) or None -> (B, S, D)."""
        pos = torch.arange(src.size(1), device=src.device)
        self.positions.ensure_length(src.size(1), self.embedding.weight)
        x, _ = self.positions.embed(self.embedded(self.embedding(src)), pos, None)
        x = self.dropout(self.positioned(x))  # (B, S, D)
        bias = None if src_mask is None else mask_to_bias(src_mask[:, None, None, :], x.dtype)  # (B, 1, 1, S)
        static = self.positions.static_bias(pos, pos)  # (H, S, S)
        if static is not None:
            bias = static if bias is None else bias + static
        for layer in self.layers:
            x = layer(x, self.positions, pos, bias)
        out: Tensor = self.final_norm(x)
        return out


class Decoder(nn.Module):
    """As the encoder, with a look at the memory in every layer and none at later positions."""

    def __init__(
        self,
        embedding: Embedding,
        positions: Positions,
        layers: Iterable[DecoderLayer],
        final_norm: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.embedded = Tap("row", "position", "feature")
        self.positioned = Tap("row", "position", "feature")

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        """A state for N = B * beams rows; `max_len = 0` keeps nothing of the target."""
        states = memory.states
        layers = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            own = layer.self_attn.new_cache(states.size(0) * beams, max_len, like=states) if max_len else None
            layers.append(_Record(own, layer.cross_attn.project(states)))
        mask = None if memory.mask is None else mask_to_bias(memory.mask[:, None, None, :], states.dtype)
        return DecodeState(list(layers), beams, memory_bias=mask)

    def forward(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """tokens (N, T), the next T of every row -> hidden states (N, T, D)."""
        pos, keys = state.next(tokens.size(1), tokens.device)
        self.positions.ensure_length(keys, self.embedding.weight)
        x, state.carry = self.positions.embed(self.embedded(self.embedding(tokens)), pos, state.carry)
        x = self.dropout(self.positioned(x))  # (N, T, D)
        bias, causal = order_bias(self.positions, pos, keys, x.dtype, state.needs_future_mask)
        for layer, record in zip(self.layers, state.layers, strict=True):
            assert isinstance(record, _Record)
            x = layer(x, self.positions, pos, bias, causal, record.own, record.cross, state.memory_bias)
        state.length += tokens.size(1)
        out: Tensor = self.final_norm(x)
        return out


class Transformer(Model):
    """Encoder and decoder with an output layer."""

    def __init__(self, encoder: Encoder, decoder: Decoder, output: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output

    def encode(self, src: Tensor, src_mask: Tensor | None) -> Memory:
        return Memory(self.encoder(src, src_mask), src_mask)

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        return self.decoder.start(memory, beams, max_len)

    def decode_hidden(self, tokens: Tensor, state: DecodeState) -> Tensor:
        hidden: Tensor = self.decoder(tokens, state)
        return hidden
