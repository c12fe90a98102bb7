"""What a decoder remembers from one target position to the next.

The state belongs to the caller.  It has an explicit `length`, one record a layer, and `select`, which reorders beams
and drops finished sentences in the same call.

Letters: B sentences, K beams, N = B*K rows, H heads, Hkv heads of keys and values, S source length, Dh head size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["CrossKeyValues", "DecodeState", "LayerState", "LinearSums", "SelfKeyValues", "SelfState"]


class LayerState(Protocol):
    """What one layer remembers."""

    def select(self, rows: Tensor, sentences: Tensor, length: int) -> None:
        """Keep `rows` (N',) of the N rows, in that order, `length` positions each.

        They belong to `sentences` (B',) of the B sentences.
        """

    def nbytes(self) -> int: ...


class SelfKeyValues:
    """Keys and values of the target so far: preallocated (N, Hkv, max_len, Dh), written at `length`."""

    def __init__(self, rows: int, n_kv_heads: int, max_len: int, d_head: int, like: Tensor) -> None:
        self.keys = like.new_zeros(rows, n_kv_heads, max_len, d_head)
        self.values = torch.zeros_like(self.keys)

    def append(self, keys: Tensor, values: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Write (N, Hkv, T, Dh) behind the first `length` positions; return all keys and values up to there."""
        end = length + keys.size(2)
        if end > self.keys.size(2):
            raise ValueError(f"the decode state holds {self.keys.size(2)} positions, position {end} was asked for")
        self.keys[:, :, length:end] = keys
        self.values[:, :, length:end] = values
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
