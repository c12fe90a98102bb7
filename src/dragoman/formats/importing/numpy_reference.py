"""Definitions of models in NumPy, which imported models are compared with where no other program can be installed.

A definition reads the parameters of a checkpoint under their own names and shares no code with our models, so that
wrong names, transpositions, orders, positions and norms become differences.

Letters: B sentences, N rows (B times beams), S source length, T positions, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman.formats.importing.family import NEVER, ImportedVocabulary
from dragoman.formats.parity import ParityCase
from dragoman.tokenizers import BOS, PAD

Floats = NDArray[np.floating[Any]]
Ids = NDArray[np.int64]
State = list[Floats]
"""What each decoder layer keeps of the past, with one row per row of the batch."""
_BATCH = 16


class Memory:
    """The encoded source of each row.  states: (N, S, D); mask: (N, S), True = a token."""

    def __init__(self, states: Floats, mask: NDArray[np.bool_]) -> None:
        self.states, self.mask = states, mask

    def select(self, rows: Ids) -> Memory:
        return Memory(self.states[rows], self.mask[rows])


class NumpyReference(Protocol):
    """An encoder-decoder, on the ids of its checkpoint."""

    def encode(self, sources: Sequence[Sequence[int]]) -> Memory:
        """sources: ids with the end of sentence."""

    def start(self, rows: int) -> State: ...

    def step(self, tokens: Ids | None, position: int, state: State, memory: Memory) -> Floats:
        """Advance `state` by one position and return its last hidden vectors (N, D).  tokens: (N,), None at first."""

    def logits(self, hidden: Floats) -> Floats:
        """Return (N, V) for (N, D)."""


# NumPy warned here of invalid values in products of finite matrices, with a correct result (seen with OpenBLAS).
_quiet = np.errstate(invalid="ignore")


class SearchedReference:
    """A definition on the ids of the imported model: a `formats.parity.ExternalRuntime`."""

    def __init__(
        self, model: NumpyReference, name: str, vocabulary: ImportedVocabulary, end: int, never: Sequence[int] = ()
    ) -> None:
        """end: the end of sentence in the checkpoint.  never: ids whose logits become NEVER."""
        self.model, self.name, self.end, self.never = model, name, end, list(never)
        self.source, self.target = vocabulary.source, vocabulary.target
        self.ours = {theirs: ours for ours, theirs in enumerate(self.target) if theirs >= 0}
        self.excluded = [token for token in (self.target[PAD], self.target[BOS]) if token not in (-1, end)]

    @_quiet
    def logits(self, source: Sequence[int], target: Sequence[int]) -> Floats:
        """Return the logits (T, V) after BOS and each token of a target, in the order of the checkpoint.

        source, target: our ids, the source with EOS.
        """
        memory, state = self.model.encode([[self.source[token] for token in source]]), self.model.start(1)
        tokens = [None, *(np.array([self.target[token]]) for token in target)]
        return self._logits(
            np.concatenate([self.model.step(token, i, state, memory) for i, token in enumerate(tokens)])
        )

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
        found: list[list[list[int]]] = []
        for begin in range(0, len(cases), _BATCH):
            sources = [[self.source[token] for token in case.source] for case in cases[begin : begin + _BATCH]]
            tokens = self._beams(sources, width, max_length, fixed=min_length == max_length)
            found += [[self._until_end(row) for row in sentence] for sentence in tokens.tolist()]
        return found

    @_quiet
    def _beams(self, sources: list[list[int]], width: int, length: int, fixed: bool) -> np.ndarray:
        """Return the ids (B, width, T) of a beam search; of width 1, of greedy search, which may end.

        fixed: the end of sentence is excluded before the softmax.
        """
        count = len(sources)
        state = self.model.start(count * width)
        memory = self.model.encode(sources).select(np.repeat(np.arange(count), width))
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

    def _until_end(self, row: list[int]) -> list[int]:
        return [self.ours[token] for token in (row[: row.index(self.end)] if self.end in row else row)]


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
