"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), and its decoder alone as a language model.

Shapes: B sentences, K beams, N = B*K rows, S source length, T target length, Tk keys so far, H heads, D d_model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dragoman.models.seq2seq import EncoderDecoder, LanguageModel, Memory
from dragoman.nn import fast
from dragoman.nn.attention import Span, add_biases, causal_bias, padding_bias
from dragoman.nn.fast.dropout import Dropout, repeated_dropout
from dragoman.nn.layers import DecoderLayer, Embedding, EncoderLayer
from dragoman.nn.positions import Positions
from dragoman.nn.record import Tap
from dragoman.nn.ssru import SSRUDecoderLayer
from dragoman.nn.state import CrossKeyValues, DecodeState, LayerState, LinearSums, SelfKeyValues, SelfState


@dataclass(frozen=True)
class StackParts:
    """What a `Stack` consists of besides its embedding; `nn.Identity` in place of a norm that it does not have."""

    positions: Positions
    layers: Iterable[nn.Module]
    dropout: float
    final_norm: nn.Module
    embedding_norm: nn.Module


class Stack(nn.Module):
    """Embedding, positions, with `normalize_embeddings` a norm, layers, and with pre-norm a final norm.

    recomputes: whether training stores only the inputs of the layers, and computes them again in the backward pass.
    """

    recomputes = False

    def __init__(self, embedding: nn.Module, parts: StackParts) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = parts.positions
        self.embedding_norm = parts.embedding_norm
        self.dropout = Dropout(parts.dropout)
        self.layers = nn.ModuleList(parts.layers)
        self.final_norm = parts.final_norm
        self.embedded = Tap("row", "position", "feature")
        self.positioned = Tap("row", "position", "feature")

    def add_positions(
        self, x: Tensor, pos: Tensor, length: int, carry: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return embeddings x (N, T, D) with positions pos (T,), all below `length`, normalized and with dropout.

        The second result is the new carry of the positions.
        """
        self.positions.ensure_length(length, like=x)
        x, carry = self.positions.embed(self.embedded(x), pos, carry)
        return fast.in_product_dtype(self.dropout(self.embedding_norm(self.positioned(x)))), carry

    def apply_layer(self, layer: nn.Module, *args: Any) -> Tensor:
        out: Tensor
        if self.recomputes and torch.is_grad_enabled():
            out = checkpoint(layer, *args, use_reentrant=False, context_fn=repeated_dropout)
        else:
            out = layer(*args)
        return out

    def encode_all(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Add positions to embeddings x (N, T, D) and apply all layers; mask (N, T), True = a token, or None."""
        pos = torch.arange(x.size(1), device=x.device)
        x, _ = self.add_positions(x, pos, x.size(1))
        bias = add_biases(padding_bias(mask, x.dtype), self.positions.static_bias(pos, pos))  # (N, H or 1, T or 1, T)
        span = Span(self.positions, pos, bias)
        for number, layer in enumerate(self.layers):
            x = self.apply_layer(layer, x, span.of_layer(number))
        return x

    def embed_next(self, tokens: Tensor, state: DecodeState) -> tuple[Tensor, Span]:
        """Return vectors (N, T, D) of the next tokens (N, T), and what self-attention receives with them."""
        if state.position is None:
            keys = state.length + tokens.size(1)
            pos = torch.arange(state.length, keys, device=tokens.device)
        else:
            pos, keys = state.position, state.keys
        x, state.carry = self.add_positions(self.embedding(tokens), pos, keys, state.carry)
        k_pos = torch.arange(keys, device=pos.device)
        bias = self.positions.static_bias(pos, k_pos)  # (H, T, Tk)
        if pos.numel() == 1 and state.position is None:  # there is no later key
            return x, Span(self.positions, pos, bias)
        if bias is None and state.position is None:  # attention itself masks later keys
            return x, Span(self.positions, pos, None, causal=True)
        return x, Span(self.positions, pos, add_biases(causal_bias(pos, k_pos, x.dtype), bias))


class Encoder(Stack):
    """A stack in which every position attends to every source token."""

    embedding: Embedding

    def forward(self, src: Tensor, src_mask: Tensor | None) -> Tensor:
        """Encode src (B, S), with src_mask (B, S) or None, and return (B, S, D)."""
        out: Tensor = self.final_norm(self.encode_all(self.embedding(src), src_mask))
        return out


@dataclass
class DecoderLayerState(LayerState):
    """The record of a decoder layer: its self-attention cache or SSRU cells, None if not kept, and the memory."""

    self_attn: SelfState | None
    cross_attn: CrossKeyValues


class Decoder(Stack):
    """A stack in which every position attends to itself, to earlier positions and to the memory."""

    embedding: Embedding

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        """Return a state of N = B * beams rows; `max_len = 0` keeps no cache."""
        states = memory.states
        layers = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer | SSRUDecoderLayer)
            cache = layer.new_cache(states.size(0) * beams, max_len, like=states) if max_len else None
            layers.append(DecoderLayerState(cache, layer.cross_attn.project(states)))
        return DecodeState(list(layers), beams, memory_bias=padding_bias(memory.mask, states.dtype))

    def forward(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """Return the hidden states (N, T, D) of the next tokens (N, T), and advance the state by T."""
        x, span = self.embed_next(tokens, state)
        for number, (layer, record) in enumerate(zip(self.layers, state.layers, strict=True)):
            assert isinstance(record, DecoderLayerState)
            parts = span.of_layer(number), record.self_attn, record.cross_attn, state.memory_bias
            x = self.apply_layer(layer, x, *parts)
        state.length += tokens.size(1)
        out: Tensor = self.final_norm(x)
        return out


class Transformer(EncoderDecoder):
    """The Transformer: encoder, decoder and output projection."""

    architecture = "transformer"
    encoder: Encoder
    decoder: Decoder


class DecoderOnly(Stack, LanguageModel):
    """A language model, which continues a text (Radford et al. 2018): a stack with an output layer, in which every
    position attends to itself and to earlier positions.
    """

    architecture = "decoder_only"
    embedding: Embedding

    def __init__(self, embedding: Embedding, parts: StackParts, output: nn.Module) -> None:
        super().__init__(embedding, parts)
        self.output = output

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        rows = memory.states.size(0) * beams
        layers: list[LayerState] = []
        for layer in self.layers if max_len else ():
            assert isinstance(layer, EncoderLayer)
            layers.append(layer.self_attn.new_cache(rows, max_len, like=memory.states))
        return DecodeState(layers, beams)

    def decode_hidden(self, tokens: Tensor, state: DecodeState) -> Tensor:
        x, span = self.embed_next(tokens, state)
        caches: Sequence[LayerState | None] = state.layers or [None] * len(self.layers)  # None: tokens are all there is
        for number, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            assert cache is None or isinstance(cache, SelfKeyValues | LinearSums)
            x = self.apply_layer(layer, x, span.of_layer(number), cache)
        state.length += tokens.size(1)
        out: Tensor = self.final_norm(x)
        return out
