"""The native engine as a `Stepper`, for sampling, streaming and ensembles.

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
from dragoman.tokenizers import BOS


class EngineState:
    """A session with the target slot and the source slot of each row; closed with the last reference."""

    def __init__(self, engine: Engine, session: int, rows: int, beams: int) -> None:
        self.engine, self.session = engine, session
        self.target_slots = np.arange(rows, dtype=np.int32)
        self.source_slots = (np.arange(rows) // beams).astype(np.int32)
        self.rows = rows
        self.length = 0
        self.first: Tensor | None = None  # the input of the next step instead of BOS, after a prompt

    def select(self, rows: Tensor) -> None:
        """Keep the selected rows.  The first copy of a row keeps its slot; further copies are made in unused slots."""
        chosen = rows.tolist()
        slots = self.target_slots[chosen]
        unused = iter(sorted(set(range(self.rows)) - set(slots.tolist())))
        used: set[int] = set()
        for row, slot in enumerate(slots.tolist()):
            if slot in used:
                slots[row] = next(unused)
                self.engine.call_session("copy", self.session, slot, int(slots[row]), self.length)
            used.add(slot)
        self.target_slots, self.source_slots = slots, self.source_slots[chosen]

    def __del__(self) -> None:
        self.engine.close_session(self.session)


class EngineStepper:
    """A packed model as a `Stepper`.  `start` raises UsageError if a length exceeds the model's positions."""

    def __init__(self, engine: Engine, threads: int = 1) -> None:
        self.engine = engine
        self.threads = threads

    def start(self, src: Tensor, src_mask: Tensor | None, beams: int, max_len: int) -> EngineState:
        count, width = src.shape
        rows = count * beams
        length = max_len if self.engine.has_encoder else max_len + width
        session = self.engine.open_session(self.threads, rows, length, count, width)
        state = EngineState(self.engine, session, rows, beams)
        if self.engine.has_encoder:
            mask = torch.ones_like(src, dtype=torch.bool) if src_mask is None else src_mask
            tokens, lengths = src[mask].numpy().astype(np.int32), mask.sum(1).numpy().astype(np.int32)
            slots = np.arange(count, dtype=np.int32)
            self.engine.call_session("encode", session, *map(_address, (tokens, lengths, slots)), count)
        elif width:
            prompts = src.repeat_interleave(beams, dim=0)
            for column in (torch.full_like(prompts[:, 0], BOS), *prompts[:, :-1].unbind(1)):
                self.step(column, state)
            state.first = prompts[:, -1].contiguous()
        return state

    def step(self, tokens: Tensor, state: EngineState) -> Tensor:
        if state.first is not None:
            tokens, state.first = state.first, None
        count = tokens.numel()
        columns = [tokens.numpy(), np.full(count, state.length), state.target_slots, state.source_slots]
        rows = np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.int32)
        log_probs = np.empty((count, self.engine.target_size), np.float32)
        self.engine.call_session("step", state.session, _address(rows), count, _address(log_probs))
        state.length += 1
        return torch.from_numpy(log_probs)


def _address(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
