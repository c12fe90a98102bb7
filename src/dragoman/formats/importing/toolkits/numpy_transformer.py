"""The Transformer of the toolkits in NumPy, written from their documented architecture; see `importing.definition`.

The toolkits differ in the names of their parameters, in the order of norms and in positions, which `Names` and
`Sizes` describe.  Matrices are (out, in), as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.formats.importing.numpy_reference import Floats, Memory, State

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Names:
    """Names of parameters without ".weight" and ".bias".

    layers: per stack and part the name in a layer, `{}` is its number.  Parts: q, k, v, o of "self" and "cross"
    attention, such as "self q"; "in" and "out" of the feed-forward network; "self norm", "cross norm", "norm" of the
    network.  others: "source", "target" (embeddings), "output" (layer), "<stack> norm" (after a stack), "<stack>
    embedding norm".
    """

    layers: Mapping[str, Mapping[str, str]]
    others: Mapping[str, str]


@dataclass(frozen=True)
class Sizes:
    """scale: factor of the embeddings.  begin: first token of the decoder.  positions: table (T, D) of a stack."""

    heads: int
    layers: tuple[int, int]
    is_pre: bool
    activation: str
    eps: float
    scale: float
    begin: int
    end: int
    positions: Callable[[str, int], Floats]


class ToolkitDefinition:
    """A model; its state has the inputs of self-attention so far (N, T, D) of each layer."""

    def __init__(
        self, names: Names, sizes: Sizes, tensors: Mapping[str, Any], dtype: type[np.floating[Any]] = np.float32
    ) -> None:
        self.names, self.sizes, self.dtype = names, sizes, dtype
        self.p = {name: np.asarray(tensor, dtype) for name, tensor in tensors.items()}
        self.activation = _ACTIVATIONS[sizes.activation]

    def encode(self, sources: Sequence[Sequence[int]]) -> Memory:
        longest = max(map(len, sources))
        mask = np.arange(longest) < np.array([len(row) for row in sources])[:, None]
        ids = np.array([[*row, *[self.sizes.end] * (longest - len(row))] for row in sources])
        x = self._embedded("source", ids, 0, "encoder")
        for layer in range(self.sizes.layers[0]):

            def itself(y: Floats, layer: int = layer) -> Floats:
                return self._attention("encoder", layer, "self", y, y, mask)

            x = self._sublayer(x, "encoder", layer, "self norm", itself)
            x = self._feed_forward(x, "encoder", layer)
        return Memory(self._last(x, "encoder"), mask)

    def start(self, rows: int) -> State:
        width = self.p[f"{self.names.others['target']}.weight"].shape[1]
        return [np.zeros((rows, 0, width), self.dtype)] * self.sizes.layers[1]

    def step(self, tokens: Ids | None, position: int, state: State, memory: Memory) -> Floats:
        ids = np.full(len(memory.mask), self.sizes.begin) if tokens is None else tokens
        x = self._embedded("target", ids[:, None], position, "decoder")
        for layer in range(self.sizes.layers[1]):

            def past(y: Floats, layer: int = layer) -> Floats:
                state[layer] = np.concatenate([state[layer], y], axis=1)
                seen = np.ones(state[layer].shape[:2], bool)
                return self._attention("decoder", layer, "self", y, state[layer], seen)

            def source(y: Floats, layer: int = layer) -> Floats:
                return self._attention("decoder", layer, "cross", y, memory.states, memory.mask)

            x = self._sublayer(x, "decoder", layer, "self norm", past)
            x = self._sublayer(x, "decoder", layer, "cross norm", source)
            x = self._feed_forward(x, "decoder", layer)
        return self._last(x, "decoder")[:, 0]

    def logits(self, hidden: Floats) -> Floats:
        return self._affine(hidden, self.names.others["output"])

    def _embedded(self, side: str, ids: Ids, first: int, stack: str) -> Floats:
        """Return (N, T, D) for ids (N, T) of the positions from `first`."""
        table = self.sizes.positions(stack, first + ids.shape[1])[first:].astype(self.dtype)
        x: Floats = self.p[f"{self.names.others[side]}.weight"][ids] * self.dtype(self.sizes.scale) + table
        name = self.names.others.get(f"{stack} embedding norm", "")
        return self._norm(x, name) if f"{name}.weight" in self.p else x

    def _last(self, x: Floats, stack: str) -> Floats:
        return self._norm(x, self.names.others[f"{stack} norm"]) if self.sizes.is_pre else x

    def _sublayer(self, x: Floats, stack: str, layer: int, norm: str, function: Callable[[Floats], Floats]) -> Floats:
        name = self._name(stack, layer, norm)
        if self.sizes.is_pre:
            return x + function(self._norm(x, name))
        return self._norm(x + function(x), name)

    def _feed_forward(self, x: Floats, stack: str, layer: int) -> Floats:
        inner, outer = (self._name(stack, layer, part) for part in ("in", "out"))

        def network(y: Floats) -> Floats:
            return self._affine(self.activation(self._affine(y, inner)), outer)

        return self._sublayer(x, stack, layer, "norm", network)

    def _attention(
        self, stack: str, layer: int, kind: str, x: Floats, memory: Floats, mask: NDArray[np.bool_]
    ) -> Floats:
        q, k, v, o = (self._name(stack, layer, f"{kind} {part}") for part in "qkvo")
        queries, keys, values = (self._split(self._affine(y, name)) for y, name in ((x, q), (memory, k), (memory, v)))
        scores = queries @ keys.swapaxes(-1, -2) / self.dtype(math.sqrt(queries.shape[-1]))  # (N, H, T, S)
        scores = np.where(mask[:, None, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ values
        return self._affine(mixed.swapaxes(1, 2).reshape(x.shape), o)

    def _split(self, x: Floats) -> Floats:
        return x.reshape(*x.shape[:2], self.sizes.heads, -1).swapaxes(1, 2)

    def _affine(self, x: Floats, name: str) -> Floats:
        result: Floats = x @ self.p[f"{name}.weight"].T + self.p.get(f"{name}.bias", 0)
        return result

    def _norm(self, x: Floats, name: str) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.dtype(self.sizes.eps))
        result: Floats = normed * self.p[f"{name}.weight"] + self.p[f"{name}.bias"]
        return result

    def _name(self, stack: str, layer: int, part: str) -> str:
        return self.names.layers[stack][part].format(layer)


def interleaved_sinusoids(count: int, d_model: int) -> Floats:
    """Sines at even features and cosines at odd ones, with the rates of the paper, (count, D)."""
    rates = np.exp(np.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
    angles = np.arange(count)[:, None] * rates
    table = np.zeros((count, d_model))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


def halved_sinusoids(first: int, count: int, d_model: int) -> Floats:
    """Sines, then cosines, of the positions from `first`; the slowest rate is 1/10000, (count, D)."""
    half = d_model // 2
    angles = np.arange(first, first + count)[:, None] * np.exp(np.arange(half) * -(math.log(10000.0) / (half - 1)))
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros((count, d_model % 2))], axis=1)


def _gelu(x: Floats) -> Floats:
    import torch

    result: Floats = torch.nn.functional.gelu(torch.from_numpy(x)).numpy()  # NumPy has no error function
    return result


_ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "relu": lambda x: np.maximum(x, 0), "gelu": _gelu, "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}  # fmt: skip
