"""Decoder-only Transformer (Radford et al. 2018): a language model, which continues a text.

Shapes: B texts, K beams, N = B*K rows, T positions, D d_model.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from dragoman.models.seq2seq import LanguageModel, Memory
from dragoman.models.transformer import Stack, StackParts
from dragoman.nn.layers import Embedding, EncoderLayer
from dragoman.nn.state import DecodeState, LayerState, LinearSums, SelfKeyValues


class DecoderOnly(Stack, LanguageModel):
    """A stack in which every position attends to itself and to earlier positions, with an output layer."""

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
        for layer, cache in zip(self.layers, caches, strict=True):
            assert cache is None or isinstance(cache, SelfKeyValues | LinearSums)
            x = self.apply_layer(layer, x, span, cache)
        state.length += tokens.size(1)
        out: Tensor = self.final_norm(x)
        return out
