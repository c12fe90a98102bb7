"""The engine step by step, for the searches of `dragoman.decoding`: sampling, streaming, ensembles.

Letters: B sentences, K beams, N = B*K rows, S source length, V vocabulary.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.decoding.native.engine import Engine

__all__ = ["EngineState", "EngineStepper"]


class EngineState:
    """Which slot of the core's memory each row has, and which sentence it belongs to.  Kept open until forgotten."""

    def __init__(self, engine: Engine, session: int, rows: int, beams: int) -> None:
        self.engine, self.session = engine, session
        self.slots = np.arange(rows, dtype=np.int32)
        self.sentences = (np.arange(rows) // beams).astype(np.int32)
        self.rows = rows
        self.length = 0

    def select(self, rows: Tensor) -> None:
        """The first row that comes from a slot keeps it; the others get copies in slots that nobody keeps."""
        chosen = rows.tolist()
        slots = self.slots[chosen]
        free = iter(sorted(set(range(self.rows)) - set(slots.tolist())))
        taken: set[int] = set()
        for row, slot in enumerate(slots.tolist()):
            if slot in taken:
                slots[row] = next(free)
                self.engine.call("copy", self.session, slot, int(slots[row]), self.length)
            taken.add(slot)
        self.slots, self.sentences = slots, self.sentences[chosen]

    def __del__(self) -> None:
        self.engine.end(self.session)


class EngineStepper:
    """A packed model as a `Stepper`.  Raises UsageError for what is longer than the positions of the packed model."""

    def __init__(self, engine: Engine, threads: int = 1) -> None:
        self.engine = engine
        self.threads = threads

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> EngineState:
        count, width = src.shape
        rows = count * beams
        session = self.engine.begin(self.threads, rows, max_len, count, width)
        state = EngineState(self.engine, session, rows, beams)
        if self.engine.encodes:
            mask = torch.ones_like(src, dtype=torch.bool) if src_mask is None else src_mask
            tokens = src[mask].numpy().astype(np.int32)
            lengths = mask.sum(1).numpy().astype(np.int32)
            places = np.arange(count, dtype=np.int32)
            self.engine.call("encode", session, _at(tokens), _at(lengths), _at(places), count)
        return state

    def step(self, tokens: Tensor, state: EngineState) -> Tensor:
        count = tokens.numel()
        rows = np.stack([tokens.numpy(), np.full(count, state.length), state.slots, state.sentences], axis=1)
        rows = np.ascontiguousarray(rows, dtype=np.int32)
        log_probs = np.empty((count, self.engine.target_size), np.float32)
        self.engine.call("step", state.session, _at(rows), count, _at(log_probs))
        state.length += 1
        return torch.from_numpy(log_probs)


def _at(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
