"""Marian's Transformer in NumPy, written from its definition: what an imported model is compared with.

It reads the parameters under Marian's names and in Marian's layout, and shares no code with our models, so that wrong
names, transpositions, orders, positions and norms become differences.  Weights of 8 and 16 bits are the numbers that
they stand for; arithmetic is in floating point, not in 8 bits.

Letters: B sentences, N rows (B times beams), S source length, T positions, D dim-emb, V vocabulary.  Vectors are rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.formats.importing.numpy_reference import Floats, Memory, State

Ids = NDArray[np.int64]

EOS = 0
_EPS = 1e-6


class NumpyMarian:
    """A model; its state has the cells of an SSRU (N, D), or the inputs of self-attention so far (N, T, D).

    settings: of `special:model.yml`; tensors: by Marian's names."""

    def __init__(
        self, settings: Mapping[str, Any], tensors: Mapping[str, Floats], dtype: type[np.floating[Any]] = np.float32
    ) -> None:
        self.settings, self.dtype = settings, dtype
        self.p = {name: np.asarray(tensor, dtype) for name, tensor in tensors.items()}
        self.d_model, self.heads = settings["dim-emb"], settings["transformer-heads"]
        self.is_recurrent = settings.get("transformer-decoder-autoreg") == "rnn"
        self.is_pre = "n" in settings.get("transformer-preprocess", "")
        self.activation = _ACTIVATIONS[settings.get("transformer-ffn-activation", "swish")]
        tied = settings.get("tied-embeddings-all") or settings.get("tied-embeddings-src")
        self.source = self.p["Wemb" if tied else "encoder_Wemb"]
        self.target = self.p["Wemb" if tied else "decoder_Wemb"]
        if settings.get("tied-embeddings-all") or settings.get("tied-embeddings"):
            self.output = self.target.T
        else:
            name = "decoder_ff_logit_out_W"
            self.output = self.p[name] if name in self.p else self.p[f"{name}t"].T

    def encode(self, sources: Sequence[Sequence[int]]) -> Memory:
        """sources: ids with the end of sentence."""
        longest = max(map(len, sources))
        mask = np.arange(longest) < np.array([len(row) for row in sources])[:, None]
        ids = np.array([[*row, *[EOS] * (longest - len(row))] for row in sources])
        x = self.source[ids] * self.dtype(math.sqrt(self.d_model)) + self._positions(0, longest)
        for layer in range(1, self.settings["enc-depth"] + 1):
            name = f"encoder_l{layer}"

            def itself(y: Floats, name: str = name) -> Floats:
                return self._attention(f"{name}_self", y, y, mask)

            x = self._feed_forward(self._sublayer(x, f"{name}_self_Wo", itself), name)
        return Memory(self._norm(x, "encoder_top_ln", "") if self.is_pre else x, mask)

    def start(self, rows: int) -> State:
        shape = (rows, self.d_model) if self.is_recurrent else (rows, 0, self.d_model)
        return [np.zeros(shape, self.dtype)] * self.settings["dec-depth"]

    def step(self, tokens: Ids | None, position: int, state: State, memory: Memory) -> Floats:
        """Advance `state` by one position and return its last hidden vectors (N, D).  tokens: (N,), None at first."""
        x = np.zeros((len(memory.mask), 1, self.d_model), self.dtype)  # the first input is zero
        if tokens is not None:
            x = self.target[tokens][:, None] * self.dtype(math.sqrt(self.d_model))
        x = x + self._positions(position, 1)
        for index in range(self.settings["dec-depth"]):
            name = f"decoder_l{index + 1}"

            def past(y: Floats, name: str = name, index: int = index) -> Floats:
                return self._ssru(name, y, state, index) if self.is_recurrent else self._self(name, y, state, index)

            def source(y: Floats, name: str = name) -> Floats:
                return self._attention(f"{name}_context", y, memory.states, memory.mask)

            if self.is_recurrent:
                x = self._sublayer(x, f"{name}_rnn", past, after=f"{name}_rnn_ffn")
            else:
                x = self._sublayer(x, f"{name}_self_Wo", past)
            x = self._sublayer(x, f"{name}_context_Wo", source)
            x = self._feed_forward(x, name)
        return (self._norm(x, "decoder_top_ln", "") if self.is_pre else x)[:, 0]

    def logits(self, hidden: Floats) -> Floats:
        """Return (N, V) for (N, D)."""
        logits: Floats = hidden @ self.output
        return logits + self.p.get("decoder_ff_logit_out_b", 0)

    def _sublayer(self, x: Floats, norm: str, function: Callable[[Floats], Floats], after: str = "") -> Floats:
        """norm: name of the norm; after: that of the norm after the sub-layer, if it has another."""
        if self.is_pre:
            return x + function(self._norm(x, f"{norm}_ln", "_pre"))
        return self._norm(x + function(x), f"{after or norm}_ln", "")

    def _norm(self, x: Floats, name: str, suffix: str) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.dtype(_EPS))
        result: Floats = normed * self.p[f"{name}_scale{suffix}"] + self.p[f"{name}_bias{suffix}"]
        return result

    def _affine(self, x: Floats, name: str, part: str) -> Floats:
        result: Floats = x @ self.p[f"{name}_W{part}"] + self.p[f"{name}_b{part}"]
        return result

    def _attention(self, name: str, x: Floats, memory: Floats, mask: NDArray[np.bool_]) -> Floats:
        q, k, v = (self._split(self._affine(y, name, part)) for y, part in ((x, "q"), (memory, "k"), (memory, "v")))
        scores = q @ k.swapaxes(-1, -2) / self.dtype(math.sqrt(self.d_model // self.heads))  # (N, H, T, S)
        scores = np.where(mask[:, None, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        return self._affine(mixed.swapaxes(1, 2).reshape(x.shape), name, "o")

    def _split(self, x: Floats) -> Floats:
        return x.reshape(*x.shape[:2], self.heads, -1).swapaxes(1, 2)

    def _self(self, name: str, x: Floats, state: State, index: int) -> Floats:
        state[index] = np.concatenate([state[index], x], axis=1)
        return self._attention(f"{name}_self", x, state[index], np.ones(state[index].shape[:2], bool))

    def _ssru(self, name: str, x: Floats, state: State, index: int) -> Floats:
        forget = 1 / (1 + np.exp(-self._affine(x[:, 0], f"{name}_rnn", "f")))
        state[index] = forget * state[index] + (1 - forget) * (x[:, 0] @ self.p[f"{name}_rnn_W"])
        return np.maximum(state[index], 0)[:, None]

    def _feed_forward(self, x: Floats, name: str) -> Floats:
        name = f"{name}_ffn"

        def network(y: Floats) -> Floats:
            return self._affine(self.activation(self._affine(y, name, "1")), name, "2")

        return self._sublayer(x, f"{name}_ffn", network)

    def _positions(self, first: int, count: int) -> Floats:
        half = self.d_model // 2
        rates = np.exp(-np.log(10000.0) * np.arange(half) / (half - 1))
        angles = np.arange(first, first + count)[:, None] * rates
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(self.dtype)


def _gelu(x: Floats) -> Floats:
    import torch

    result: Floats = torch.nn.functional.gelu(torch.from_numpy(x)).numpy()  # NumPy has no error function
    return result


_ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "relu": lambda x: np.maximum(x, 0), "swish": lambda x: x / (1 + np.exp(-x)), "gelu": _gelu,
}  # fmt: skip
