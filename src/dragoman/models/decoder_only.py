"""A decoder by itself (Radford et al. 2018): a language model, which goes on with the text it is given.

It has no source.  A prompt is the beginning of the target: `search.generate(..., prefix=[ids])`.

Letters: B texts, K beams, N = B*K rows, T positions, Tk positions so far, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from dragoman.errors import UsageError
from dragoman.models.seq2seq import Memory, Model
from dragoman.models.transformer import order_bias
from dragoman.nn.dropout import Dropout
from dragoman.nn.layers import Embedding, EncoderLayer
from dragoman.nn.positions import Positions
from dragoman.nn.state import DecodeState, LayerState, LinearSums, SelfKeyValues
from dragoman.nn.taps import Tap

__all__ = ["DecoderOnly"]


class DecoderOnly(Model):
    """Embeddings, positions, a stack of layers that never look at later positions, and an output layer."""

    def __init__(
        self,
        embedding: Embedding,
        positions: Positions,
        layers: Iterable[EncoderLayer],
        final_norm: nn.Module,
        output: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.output = output
        self.embedded = Tap("row", "position", "feature")
        self.positioned = Tap("row", "position", "feature")

    def encode(self, src: Tensor, src_mask: Tensor | None) -> Memory:
        """src: (B, 0), which says how many texts -> a memory without positions, (B, 0, D).

        Raises UsageError for a source: there is nothing here that reads one.
        """
        if src.size(1):
            raise UsageError(
                f"a source of {src.size(1)} tokens for a model without encoder: give src of shape ({src.size(0)}, 0)"
                " and the prompt as the beginning of the target (the prefix of a search)"
            )
        return Memory(self.embedding.weight.new_zeros(src.size(0), 0, self.embedding.weight.size(1)), None)

    def start(self, memory: Memory, beams: int, max_len: int) -> DecodeState:
        rows = memory.states.size(0) * beams
        layers: list[LayerState] = []
        for layer in self.layers if max_len else ():
            assert isinstance(layer, EncoderLayer)
            layers.append(layer.self_attn.new_cache(rows, max_len, like=memory.states))
        return DecodeState(layers, beams)

    def decode_hidden(self, tokens: Tensor, state: DecodeState) -> Tensor:
        pos, keys = state.next(tokens.size(1), tokens.device)
        self.positions.ensure_length(keys, self.embedding.weight)
        x, state.carry = self.positions.embed(self.embedded(self.embedding(tokens)), pos, state.carry)
        x = self.dropout(self.positioned(x))  # (N, T, D)
        bias, causal = order_bias(self.positions, pos, keys, x.dtype, state.needs_future_mask)
        # Without records nothing is kept: this call takes the whole text.
        caches: Sequence[LayerState | None] = state.layers or [None] * len(self.layers)
        for layer, cache in zip(self.layers, caches, strict=True):
            assert cache is None or isinstance(cache, SelfKeyValues | LinearSums)
            x = layer(x, self.positions, pos, bias, causal, cache)
        state.length += tokens.size(1)
        out: Tensor = self.final_norm(x)
        return out
