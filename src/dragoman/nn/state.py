"""What a decoder remembers from one target position to the next.

The state belongs to the caller.  It has an explicit `length`, one record a layer, and `select`, which reorders beams
and drops finished sentences in the same call.

Letters: B sentences, K beams, N = B*K rows, H heads, Hkv heads of keys and values, S source length, Dh head size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

__all__ = [
    "CrossKeyValues",
    "DecodeState",
    "FixedKeyValues",
    "FixedState",
    "LayerState",
    "LinearSums",
    "SelfKeyValues",
    "SelfState",
]


class LayerState(Protocol):
    """What one layer remembers."""

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        """Keep `rows` (N',) of the N rows, in that order, `length` positions each.

        They belong to `sentences` (B',) of the B sentences.
        """

    def nbytes(self) -> int: ...


class SelfKeyValues:
    """Keys and values of the target so far: preallocated (N, Hkv, max_len, Dh), `length` of them written."""

    def __init__(self, rows: int, n_kv_heads: int, max_len: int, d_head: int, like: Tensor) -> None:
        self.keys = like.new_zeros(rows, n_kv_heads, max_len, d_head)
        self.values = torch.zeros_like(self.keys)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write (N, Hkv, T, Dh) behind what is there; return all keys and values up to there."""
        begin, end = self.length, self.length + keys.size(2)
        if end > self.keys.size(2):
            raise ValueError(f"the decode state holds {self.keys.size(2)} positions, position {end} was asked for")
        self.keys[:, :, begin:end] = keys
        self.values[:, :, begin:end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        n = rows.numel()
        for name in ("keys", "values"):
            buffer: Tensor = getattr(self, name)
            # Indexing copies before it writes, so reordering in place is safe; dropped rows stay allocated behind
            # the view until the state goes, which is cheaper than a new buffer a step.
            buffer[:n, :, :length] = buffer[rows, :, :length]
            setattr(self, name, buffer[:n])

    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


class FixedKeyValues(SelfKeyValues):
    """The same memory with every shape the same at every step: one position is written where `place` (1,) says.

    Attention gets all max_len keys and must hide those to come.
    """

    def __init__(self, of: SelfKeyValues, place: Tensor) -> None:
        self.keys, self.values, self.place = of.keys, of.values, place

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return self.keys.index_copy_(2, self.place, keys), self.values.index_copy_(2, self.place, values)

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        """Put the rows (N,) in a new order; none is dropped."""
        self.keys.copy_(self.keys[rows])
        self.values.copy_(self.values[rows])


class LinearSums:
    """What linear attention keeps of the target so far: two sums over its positions, as large at each length.

    keys_values (N, H, Dh, Dh): of psi(k) v^T.  keys (N, H, 1, Dh): of psi(k).
    """

    def __init__(self, rows: int, n_heads: int, d_head: int, like: Tensor) -> None:
        wide = torch.promote_types(like.dtype, torch.float32)  # half a word is too short for a long sum
        self.keys_values = like.new_zeros(rows, n_heads, d_head, d_head, dtype=wide)
        self.keys = like.new_zeros(rows, n_heads, 1, d_head, dtype=wide)

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        self.keys_values = self.keys_values[rows]
        self.keys = self.keys[rows]

    def nbytes(self) -> int:
        return self.keys_values.nbytes + self.keys.nbytes


SelfState = SelfKeyValues | LinearSums
"""What a self-attention remembers: made by its `new_cache`."""


class CrossKeyValues:
    """Keys and values of the memory, projected once: (B, Hkv, S, Dh), or (B, S, D) without heads; never tiled."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        self.keys = self.keys[sentences]
        self.values = self.values[sentences]

    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


class DecodeState:
    """The whole decoder's memory: `length` positions so far, one record a layer, the positions' carry.

    layers: one record a layer, made by the model.  memory_bias: (B, 1, 1, S), 0 and -inf, or None.
    carry: (N, ...) or None, for position kinds that compute step by step.
    """

    def __init__(
        self, layers: list[LayerState], beams: int, memory_bias: Tensor | None = None, carry: Tensor | None = None
    ) -> None:
        self.layers = layers
        self.beams = beams
        self.memory_bias = memory_bias
        self.carry = carry
        self.length = 0

    def next(self, count: int, device: torch.device) -> tuple[Tensor, int]:
        """The positions of the next `count` tokens (count,), and how many keys there are up to the last."""
        end = self.length + count
        return torch.arange(self.length, end, device=device), end

    needs_future_mask = False
    """Whether keys that are yet to come must be hidden from a single position."""

    def select(self, rows: Tensor) -> None:
        """Keep `rows` (N',): N' is a multiple of `beams`, and each group of `beams` rows is of one sentence."""
        groups = rows.view(-1, self.beams) // self.beams  # (B', K)
        sentences = groups[:, 0]
        if not bool((groups == sentences[:, None]).all()):
            raise ValueError("DecodeState.select: the rows of a group must belong to one sentence")
        for layer in self.layers:
            layer.select(rows, sentences, self.length)
        if self.memory_bias is not None:
            self.memory_bias = self.memory_bias[sentences]
        if self.carry is not None:
            self.carry = self.carry[rows]

    def nbytes(self) -> int:
        """Bytes held for this decoding, the carry included."""
        carry = 0 if self.carry is None else self.carry.nbytes
        return sum(layer.nbytes() for layer in self.layers) + carry


class FixedState(DecodeState):
    """A decoder's memory whose every step is the same work on the same memory, so that a GPU can repeat it by itself.

    caches: those of the layers, in their order, with as many positions each; `place` (1,), on their device, is the
    position that comes next, and whoever repeats the step moves it on.
    """

    needs_future_mask = True

    def __init__(
        self,
        layers: list[LayerState],
        caches: list[FixedKeyValues],
        beams: int,
        memory_bias: Tensor | None,
        place: Tensor,
    ) -> None:
        super().__init__(layers, beams, memory_bias)
        self.caches, self.place = caches, place

    def next(self, count: int, device: torch.device) -> tuple[Tensor, int]:
        return self.place, self.caches[0].keys.size(2)

    def select(self, rows: Tensor) -> None:
        """Put the rows (N,) of each sentence in a new order; none is dropped."""
        for cache in self.caches:
            cache.select(rows, rows, 0)
