"""Definitions of models in NumPy, which imported models are compared with where no other program can be installed.

A definition reads the parameters of a checkpoint in their own layout and shares no code with our models, so that wrong
transpositions, orders, ties, positions and norms become differences.

Letters: B sentences, N rows (B times beams), S source length, T positions, H heads, D d_model, V vocabulary.  Vectors
are rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.formats.importing.family import NEVER
from dragoman.formats.importing.name_tables import TransformerNames
from dragoman.formats.parity import ParityCase
from dragoman.tokenizers import BOS, PAD

Floats = NDArray[np.floating[Any]]
Ids = NDArray[np.int64]
State = list[Floats]
"""What each decoder layer keeps of the past, with one row per row of the batch."""
Memory = dict[str, NDArray[Any]]
"""The encoded source, with one row per row of the batch."""
_BATCH = 16


class SearchableModel(Protocol):
    """An encoder-decoder that advances by a position, on its own ids."""

    def encode(self, sources: Sequence[Sequence[int]]) -> Memory:
        """sources: ids with the end of sentence."""

    def start(self, rows: int) -> State: ...

    def step(self, tokens: Ids | None, position: int, state: State, memory: Memory) -> Floats:
        """Advance `state` by one position and return its last hidden vectors (N, D).  tokens: (N,), None at first."""

    def logits(self, hidden: Floats) -> Floats:
        """Return (N, V) for (N, D)."""


# NumPy warned here of invalid values in products of finite matrices, with a correct result (seen with OpenBLAS).
_quiet = np.errstate(invalid="ignore")


class SearchedModel:
    """A model on our ids, with a greedy search and a beam search: a `formats.parity.ExternalRuntime`."""

    def __init__(
        self,
        model: SearchableModel,
        name: str,
        ids: tuple[Sequence[int], Sequence[int]],
        end: int,
        never: Sequence[int] = (),
    ) -> None:
        """ids: for each of our ids of source and target that of the model, -1 if it has none.

        end: the end of sentence.  never: ids whose logits become NEVER.
        """
        self.model, self.name, self.end, self.never = model, name, end, list(never)
        self.source, self.target = ids
        self.ours = {theirs: ours for ours, theirs in enumerate(self.target) if theirs >= 0}
        self.excluded = [token for token in (self.target[PAD], self.target[BOS]) if token not in (-1, end)]

    @_quiet
    def logits(self, source: Sequence[int], target: Sequence[int]) -> Floats:
        """Return the logits (T, V) after BOS and each token of a target, in the order of the checkpoint.

        source, target: our ids, the source with EOS.
        """
        memory, state = self.model.encode([[self.source[token] for token in source]]), self.model.start(1)
        tokens = [None, *(np.array([self.target[token]]) for token in target)]
        hidden = [self.model.step(token, i, state, memory) for i, token in enumerate(tokens)]
        return self._logits(np.concatenate(hidden))

    def _logits(self, hidden: Floats) -> Floats:
        logits = self.model.logits(hidden)
        logits[:, self.never] = NEVER
        return logits

    def score(self, case: ParityCase, ids: Sequence[int]) -> list[float]:
        log_probs = _log_softmax(self.logits(case.source, ids[:-1]))
        theirs = [self.target[token] for token in ids]
        return [float(x) for x in log_probs[np.arange(len(theirs)), theirs]]

    def search(
        self, cases: Sequence[ParityCase], width: int, min_length: int, max_length: int
    ) -> list[list[list[int]]]:
        """Targets of `min_length` = `max_length` tokens end without a cost, as in `formats.parity`."""
        results: list[list[list[int]]] = []
        for begin in range(0, len(cases), _BATCH):
            sources = [[self.source[token] for token in case.source] for case in cases[begin : begin + _BATCH]]
            tokens = self._beams(sources, width, max_length, fixed=min_length == max_length)
            for sentence in tokens.tolist():
                ended = (row[: row.index(self.end)] if self.end in row else row for row in sentence)
                results.append([[self.ours[token] for token in row] for row in ended])
        return results

    @_quiet
    def _beams(self, sources: list[list[int]], width: int, length: int, fixed: bool) -> np.ndarray:
        """Return the ids (B, width, T) of a beam search; of width 1, of greedy search, which may end.

        fixed: the end of sentence is excluded before the softmax.
        """
        count = len(sources)
        state = self.model.start(count * width)
        memory = {name: part.repeat(width, axis=0) for name, part in self.model.encode(sources).items()}
        total = np.tile(np.where(np.arange(width) == 0, 0, -np.inf), (count, 1))  # one beam before the first token
        tokens = np.zeros((count, width, 0), np.int64)
        for position in range(length):
            last = tokens[:, :, -1].flatten() if position else None
            logits = self._logits(self.model.step(last, position, state, memory))
            logits[:, self.excluded] = -np.inf
            if fixed:
                logits[:, self.end] = -np.inf
            likely = np.argpartition(logits, -width, axis=1)[:, -width:]  # (N, K): no other token can be among the best
            scores = np.take_along_axis(_log_softmax(logits), likely, 1).reshape(count, width, width)
            flat = (total[:, :, None] + scores).reshape(count, -1)  # (B, K * K)
            best = np.argpartition(-flat, width - 1, axis=1)[:, :width]
            total, beams = np.take_along_axis(flat, best, 1), best // width
            words = np.take_along_axis(likely.reshape(count, -1), best, 1)
            tokens = np.concatenate([np.take_along_axis(tokens, beams[:, :, None], 1), words[:, :, None]], axis=2)
            rows = (beams + width * np.arange(count)[:, None]).flatten()
            state[:] = [part[rows] for part in state]
            if not fixed and (tokens == self.end).any(2).all():
                break
        return tokens


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


# --------------------------------------------------------------------------------------------------------- Transformers


@dataclass(frozen=True)
class Sizes:
    """What a definition needs besides names and tensors.

    layers: of encoder and decoder; first: number of the first one.  activation: as in `model.activation`.  scale:
    factor of the embeddings.  begin: first token of the decoder, None for a vector of zeros.  end: end of sentence.
    positions: returns the table (T, D) of a stack for the first position and T.  output_bias: its name.
    """

    heads: int
    layers: tuple[int, int]
    is_pre: bool
    activation: str
    eps: float
    scale: float
    begin: int | None
    end: int
    positions: Callable[[str, int, int], Floats]
    first: int = 0
    output_bias: str = ""


class NumpyTransformer:
    """A Transformer, written from the documented architecture of Marian and of the toolkits: a `SearchableModel`.

    Its state has the inputs of self-attention so far (N, T, D) of each layer, or the cells of an SSRU (N, D).
    """

    def __init__(
        self,
        names: TransformerNames,
        sizes: Sizes,
        tensors: Mapping[str, Any],
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        self.names, self.sizes, self.dtype = names, sizes, dtype
        self.p = {name: np.asarray(tensor, dtype) for name, tensor in tensors.items()}
        self.activation = _ACTIVATIONS[sizes.activation]
        # Of several names of one tensor, the one that the file contains.
        parts = ((name, theirs.split("|")) for name, theirs in names.others.items())
        self.others = {name: next((each for each in part if each in self.p), part[0]) for name, part in parts}
        self.d_model = self.p[self.others["decoder.embedding"]].shape[1]

    def encode(self, sources: Sequence[Sequence[int]]) -> Memory:
        longest = max(map(len, sources))
        mask = np.arange(longest) < np.array([len(row) for row in sources])[:, None]
        ids = np.array([[*row, *[self.sizes.end] * (longest - len(row))] for row in sources])
        x = self._with_positions(self._embedded("encoder", ids), "encoder", 0)
        for layer in range(self.sizes.layers[0]):

            def itself(y: Floats, layer: int = layer) -> Floats:
                return self._attention("encoder", layer, "self_attn", y, y, mask)

            x = self._sublayer(x, "encoder", layer, "self_attn", itself)
            x = self._feed_forward(x, "encoder", layer)
        return {"states": self._last(x, "encoder"), "mask": mask}

    def start(self, rows: int) -> State:
        is_recurrent = "ssru.gate" in self.names.layers["decoder"]
        shape = (rows, self.d_model) if is_recurrent else (rows, 0, self.d_model)
        return [np.zeros(shape, self.dtype)] * self.sizes.layers[1]

    def step(self, tokens: Ids | None, position: int, state: State, memory: Memory) -> Floats:
        rows = len(memory["mask"])
        if tokens is None and self.sizes.begin is not None:
            tokens = np.full(rows, self.sizes.begin)
        x = np.zeros((rows, 1, self.d_model), self.dtype)
        if tokens is not None:
            x = self._embedded("decoder", tokens[:, None])
        x = self._with_positions(x, "decoder", position)
        for layer in range(self.sizes.layers[1]):

            def source(y: Floats, layer: int = layer) -> Floats:
                return self._attention("decoder", layer, "cross_attn", y, memory["states"], memory["mask"])

            x = self._past(x, layer, state)
            x = self._sublayer(x, "decoder", layer, "cross_attn", source)
            x = self._feed_forward(x, "decoder", layer)
        return self._last(x, "decoder")[:, 0]

    def logits(self, hidden: Floats) -> Floats:
        logits: Floats = hidden @ self.p[self.others["output"]].T
        return logits + self.p.get(self.sizes.output_bias, 0)

    def _embedded(self, stack: str, ids: Ids) -> Floats:
        """Return (N, T, D) for ids (N, T)."""
        x: Floats = self.p[self.others[f"{stack}.embedding"]][ids] * self.dtype(self.sizes.scale)
        return x

    def _with_positions(self, x: Floats, stack: str, first: int) -> Floats:
        x = x + self.sizes.positions(stack, first, x.shape[1]).astype(self.dtype)
        name = self.others.get(f"{stack}.embedding_norm")
        return x if name is None else self._norm(x, name)

    def _last(self, x: Floats, stack: str) -> Floats:
        return self._norm(x, self.others[f"{stack}.final_norm"]) if self.sizes.is_pre else x

    def _past(self, x: Floats, layer: int, state: State) -> Floats:
        """Apply the sub-layer that reads the past of the target, self-attention or an SSRU, and update its state."""

        def attention(y: Floats) -> Floats:
            state[layer] = np.concatenate([state[layer], y], axis=1)
            seen = np.ones(state[layer].shape[:2], bool)
            return self._attention("decoder", layer, "self_attn", y, state[layer], seen)

        def recurrence(y: Floats) -> Floats:
            forget = 1 / (1 + np.exp(-self._affine(y[:, 0], *self._in_layer("decoder", layer, "ssru.gate"))))
            candidate = self._affine(y[:, 0], *self._in_layer("decoder", layer, "ssru.project"))
            state[layer] = forget * state[layer] + (1 - forget) * candidate
            return np.maximum(state[layer], 0)[:, None]

        if state[layer].ndim == 2:
            return self._sublayer(x, "decoder", layer, "ssru", recurrence)
        return self._sublayer(x, "decoder", layer, "self_attn", attention)

    def _sublayer(self, x: Floats, stack: str, layer: int, part: str, function: Callable[[Floats], Floats]) -> Floats:
        (norm,) = self._in_layer(stack, layer, f"around_{part}.norm")
        if self.sizes.is_pre:
            return x + function(self._norm(x, norm))
        return self._norm(x + function(x), norm)

    def _feed_forward(self, x: Floats, stack: str, layer: int) -> Floats:
        inner, outer = self._in_layer(stack, layer, "ffn.inner", "ffn.outer")

        def network(y: Floats) -> Floats:
            return self._affine(self.activation(self._affine(y, inner)), outer)

        return self._sublayer(x, stack, layer, "ffn", network)

    def _attention(
        self, stack: str, layer: int, kind: str, x: Floats, memory: Floats, mask: NDArray[np.bool_]
    ) -> Floats:
        inputs = ("self_attn.qkv",) if kind == "self_attn" else ("cross_attn.q", "cross_attn.kv")
        q, k, v, out = self._in_layer(stack, layer, *inputs, f"{kind}.out")
        projected = [self._affine(y, name) for y, name in ((x, q), (memory, k), (memory, v))]
        queries, keys, values = (y.reshape(*y.shape[:2], self.sizes.heads, -1).swapaxes(1, 2) for y in projected)
        scores = queries @ keys.swapaxes(-1, -2) / self.dtype(math.sqrt(queries.shape[-1]))  # (N, H, T, S)
        scores = np.where(mask[:, None, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ values
        return self._affine(mixed.swapaxes(1, 2).reshape(x.shape), out)

    def _affine(self, x: Floats, name: str) -> Floats:
        naming = self.names.naming
        weight = self.p[naming.weight(name)]
        result: Floats = x @ (weight if naming.transposed else weight.T)
        return result if naming.bias is None else result + self.p.get(naming.bias(name), 0)

    def _norm(self, x: Floats, name: str) -> Floats:
        naming = self.names.naming
        assert naming.shift is not None
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.dtype(self.sizes.eps))
        result: Floats = normed * self.p[naming.gain(name)] + self.p[naming.shift(name)]
        return result

    def _in_layer(self, stack: str, layer: int, *parts: str) -> list[str]:
        """Return the names of parts of a layer."""
        number = layer + self.sizes.first
        return [name.format(number) for part in parts for name in self.names.layers[stack][part]]


def interleaved_sinusoids(first: int, count: int, d_model: int) -> Floats:
    """Sines at even features and cosines at odd ones, with the rates of the paper, (count, D)."""
    rates = np.exp(np.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
    angles = np.arange(first, first + count)[:, None] * rates
    table = np.zeros((count, d_model))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


def halved_sinusoids(first: int, count: int, d_model: int) -> Floats:
    """Sines, then cosines, of the positions from `first`; the slowest rate is 1/10000, (count, D)."""
    half = d_model // 2
    rates = np.exp(np.arange(half) * -(math.log(10000.0) / max(1, half - 1)))
    angles = np.arange(first, first + count)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros((count, d_model % 2))], axis=1)


_ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: torch.nn.functional.gelu(torch.from_numpy(x)).numpy(),  # NumPy has no error function
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}  # fmt: skip
