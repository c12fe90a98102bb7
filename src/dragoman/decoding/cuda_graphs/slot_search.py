"""Greedy and beam search in which sentences join and leave between two steps (`dragoman.decoding.cuda_graphs.slots`).

The CPU is ahead of the device: it starts one or more steps and then reads which sentences had ended before them, so
that the device does not wait.  Results are equal to those of the PyTorch search in float32, up to rounding.

Letters: B sentences that join or leave together, P slots, K beams, L target capacity.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.decoding.cuda_graphs.slots import (
    DONE,
    FIELDS,
    JOINING,
    NOT_A_NUMBER,
    RUNNING,
    PlainOperations,
    SlotState,
    SlotStep,
)
from dragoman.decoding.pytorch.stepper import nan_error
from dragoman.decoding.search_types import Hypothesis, Ids, SearchSettings, complete
from dragoman.models.transformer import Transformer
from dragoman.tokenizers import EOS

_ENCODED = 1 << 16
"""Padded source tokens that are encoded at once."""
_FEW, _SHORT = 64, 64
"""Sentences and source tokens up to which encoders are captured, for powers of four and multiples of 16."""
_FREE = np.iinfo(np.int64).max
_SWITCH = 5e-5
"""Seconds after which other threads of Python give way: PyTorch releases the interpreter in each operation."""
_AT_ONCE = (256, 4), (1024, 2)
"""Pairs of rows and steps: up to this number of rows, so many steps are started together."""
_BUFFERS = 3
"""Buffers for each transfer between host and device, which are used in turn: the host is at most two turns ahead."""
_WAIT = 8
"""Steps after which waiting sentences join although few slots are free."""

Capture = Callable[[Callable[[], object]], Callable[[], object]]
Take = Callable[[int, int], "Sequence[Sentence]"]


@dataclass(eq=False)
class Sentence:
    """A sentence to search.  tag: of the caller."""

    source: Ids
    prefix: Ids
    settings: SearchSettings
    tag: Any = None

    @property
    def limit(self) -> int:
        return self.settings.limit(len(self.source), len(self.prefix))


class SlotSearch:
    """A search of up to P sentences at a time, of any settings with K beams that only choose tokens by probability.

    size: longest source, and longest target with its end.  capture: receives a step once and returns the function that
    runs it; on a GPU it replays a CUDA graph.
    """

    def __init__(
        self,
        model: Transformer,
        beams: int,
        slots: int,
        size: int,
        capture: Capture = lambda step: step,
        operations: Any = PlainOperations,
    ) -> None:
        self.beams, self.slots, self.size, self._capture = beams, slots, size, capture
        self.state = SlotState(model, slots, beams, size, size)
        self.step = SlotStep(model, self.state, operations)
        self.device = model.device
        self._steps: dict[int, Callable[[], object]] = {}
        self._encoders: dict[tuple[int, int], _Encoder] = {}
        self._lists = [_HostCopy((slots,), torch.int32, self.device) for _ in range(_BUFFERS)]
        self._flags = [_HostCopy(self.state.info[DONE].shape, torch.int32, self.device) for _ in range(_BUFFERS)]
        self._done = self.state.info[DONE]
        self._lock = threading.Lock()
        self._forced = False
        # Tensors that a captured graph reads must live as long as it does; position tables are replaced when they grow.
        self._captured = [*model.parameters(), *model.buffers()]
        if self.device.type == "cuda":
            # Another thread of Python keeps the interpreter for 5 ms by default, ten times as long as a step takes.
            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH))
        self._empty()

    def _empty(self) -> None:
        self._sentences: dict[int, Sentence] = {}  # by slot
        self._free = list(range(self.slots))
        self._clock = self._joined = self._turn = 0
        self._begun = np.full(self.slots, _FREE)  # the step at which each slot begins
        self._count = 0
        self._changed = True

    @torch.no_grad()
    def run(self, take: Take, deliver: Callable[[Sentence, list[Hypothesis]], None]) -> None:
        """Search until `take` returns nothing and nothing is left.

        take: called before each step with the numbers of free and of used slots; returns at most as many new sentences
        as there are free slots.  deliver: receives each sentence with its hypotheses, best first.  Raises DragomanError
        if the model's output is NaN.
        """
        with self._lock:
            try:
                self._run(take, deliver)
            except BaseException:
                self.state.info[DONE].fill_(1)
                self._empty()
                raise

    def search(self, sentences: Sequence[Sentence], most: int | None = None) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence; long sources begin first.

        most: sentences that are searched at the same time (default: P).
        """
        found: dict[int, list[Hypothesis]] = {}
        waiting = sorted(sentences, key=lambda sentence: len(sentence.source))

        def take(free: int, used: int) -> list[Sentence]:
            count = min(free, len(waiting), self.slots if most is None else max(0, most - used))
            return [waiting.pop() for _ in range(count)] if count else []

        self.run(take, lambda sentence, hypotheses: found.__setitem__(id(sentence), hypotheses))
        return [found[id(sentence)] for sentence in sentences]

    def unprepared(self) -> list[Callable[[], object]]:
        """Return functions that each capture a step or an encoder that is not captured yet."""
        lengths = range(16, min(_SHORT, self.size) + 1, 16)
        shapes = [(count, longest) for longest in lengths for count in counts_of(min(_FEW, self.slots))]
        return [
            *(partial(self._step_of, count) for count in counts_of(self.slots) if count not in self._steps),
            *(partial(self._encoder_of, *shape) for shape in shapes if shape not in self._encoders),
        ]

    def prepare(self, captures: Sequence[Callable[[], object]]) -> None:
        """Call functions of `unprepared`."""
        with self._lock:
            for capture in captures:
                capture()

    def _run(self, take: Take, deliver: Callable[[Sentence, list[Hypothesis]], None]) -> None:
        flags = None
        ready: list[tuple[list[Sentence], _Download]] = []
        while True:
            new = take(len(self._free), len(self._sentences)) if self._wants_more() else ()
            if new:
                self._join(list(new))
            if self._sentences:
                self._list()
                self._step_of(self._count)()
                self._clock += self._at_once(self._count)
                before, flags = flags, (self._clock - 1, self._flags[self._turn % _BUFFERS].read(self._done))
                self._turn += 1
            elif not ready:
                return
            else:
                before, flags = flags, None
            for sentences, download in ready:
                for sentence, hypotheses in zip(sentences, self._hypotheses(sentences, download), strict=True):
                    deliver(sentence, hypotheses)
            ready = [] if before is None else self._leave(*before)

    def _wants_more(self) -> bool:
        """Whether enough slots are free that encoding new sentences is worth a pause of the others."""
        free, used = len(self._free), len(self._sentences)
        return free > 0 and (free * 8 >= used or self._clock - self._joined >= _WAIT)

    def _join(self, new: list[Sentence]) -> None:
        """Encode sentences and put them into free slots."""
        new.sort(key=lambda sentence: len(sentence.source))
        slots = [self._free.pop() for _ in new]
        lengths = [len(sentence.source) for sentence in new]
        if self._forced or any(sentence.prefix for sentence in new):
            self._forced = True
            places = self._upload(np.array(slots))
            self.state.forced.index_copy_(0, places, self._upload(padded([s.prefix for s in new], self.size, -1)))
        begin = 0
        while begin < len(new):
            end = begin + 1
            while end < len(new) and (end + 1 - begin) * lengths[end] <= _ENCODED:
                end += 1
            self._encode(new[begin:end], slots[begin:end])
            begin = end
        self._sentences.update(zip(slots, new, strict=True))
        self._begun[slots] = self._clock
        self._joined, self._changed = self._clock, True

    def _encode(self, new: Sequence[Sentence], slots: Sequence[int]) -> None:
        """Encode sentences into slots; the shapes of a few short ones are rounded up to those of captured encoders."""
        sources = [sentence.source for sentence in new]
        count, longest = len(new), max(map(len, sources))
        if count > _FEW or longest > _SHORT:
            content = np.empty((count, longest + JOINING), dtype=np.int32)
            self._fill(content, new, sources, slots)
            self.step.join(self._upload(content))
            return
        count = next(size for size in counts_of(min(_FEW, self.slots)) if size >= count)
        encoder = self._encoder_of(count, min(-(-longest // 16) * 16, self.size))
        buffer = encoder.buffers[self._turn % _BUFFERS]
        self._fill(buffer.array, new, sources, slots)
        encoder.memory.copy_(buffer.tensor, non_blocking=True)
        encoder.run()

    def _fill(
        self, rows: NDArray[np.int32], new: Sequence[Sentence], sources: Sequence[Ids], slots: Sequence[int]
    ) -> None:
        """Write the rows that `SlotStep.join` reads, the last ones for the slot that stands for none."""
        count, longest = len(new), rows.shape[1] - JOINING
        rows[count:, :longest] = EOS
        rows[count:, longest:] = [self.slots, 0, 1, 1, 1, 1, 1, 0, 0]
        rows[:count, :longest] = padded(sources, longest, EOS)
        rows[:count, longest] = slots
        info = [(0, one.limit, one.settings.min_length, one.settings.nbest, RUNNING, len(one.source)) for one in new]
        rows[:count, longest + 1 : -2] = np.array(info, dtype=np.int32).reshape(count, len(FIELDS))
        rows[:count, -2:] = np.array([one.settings.alpha for one in new]).view(np.int32).reshape(count, 2)

    def _encoder_of(self, count: int, longest: int) -> _Encoder:
        """Return the encoder of `count` sources of this length, captured on first use."""
        encoder = self._encoders.get((count, longest))
        if encoder is None:
            shape = count, longest + JOINING
            buffers = [_HostCopy(shape, torch.int32, self.device) for _ in range(_BUFFERS)]
            self._fill(buffers[0].array, [], [], [])  # a capture runs the encoder
            memory = buffers[0].tensor.to(self.device, copy=True)
            encoder = _Encoder(buffers, memory, self._capture(lambda: self.step.join(memory)))
            self._encoders[count, longest] = encoder
        return encoder

    def _list(self) -> None:
        """List the used slots for the next step, after them the one that stands for none."""
        count = next(count for count in counts_of(self.slots) if count >= len(self._sentences))
        if not self._changed and count == self._count:
            return
        self._count = count
        self._step_of(self._count)  # captured before the list is written, because a capture runs steps
        listed = self._lists[self._turn % _BUFFERS]
        listed.array[len(self._sentences) :] = self.slots
        listed.array[: len(self._sentences)] = list(self._sentences)
        self.state.active.copy_(listed.tensor, non_blocking=True)
        self._changed = False

    def _step_of(self, count: int) -> Callable[[], object]:
        """Return the function for one or more steps of the first `count` listed slots, captured on first use."""
        if count not in self._steps:
            self.state.active.fill_(self.slots)
            self._changed = True
            self._steps[count] = self._capture(lambda: [self.step(count) for _ in range(self._at_once(count))])
        return self._steps[count]

    def _at_once(self, count: int) -> int:
        """Return the number of steps that the CPU starts together, because starting one takes it 0.2 ms and more.

        Steps of few rows take less; those after the end of a sentence change nothing.
        """
        return next((steps for rows, steps in _AT_ONCE if count * self.beams <= rows), 1)

    def _leave(self, clock: int, done: _HostCopy) -> list[tuple[list[Sentence], _Download]]:
        """Free the slots that had ended at step `clock`; return their sentences and what is read of their memory."""
        flags = done.complete()
        slots = np.flatnonzero((flags[:-1] != RUNNING) & (self._begun <= clock))
        if not slots.size:
            return []
        if (flags[slots] == NOT_A_NUMBER).any():
            raise nan_error("a target position")
        longest = min(self.size, clock + 1 - int(self._begun[slots].min()))
        places, state = self._upload(slots), self.state
        history = state.history[..., :longest].index_select(0, places)
        download = _Download(history, state.pool_scores.index_select(0, places), state.pool_at.index_select(0, places))
        sentences = [self._sentences.pop(slot) for slot in slots.tolist()]
        self._begun[slots] = _FREE
        self._free += slots.tolist()
        self._changed = True
        return [(sentences, download)]

    def _hypotheses(self, sentences: Sequence[Sentence], download: _Download) -> list[list[Hypothesis]]:
        history, scores, places = download.arrays()
        nbest = np.array([sentence.settings.nbest for sentence in sentences])
        wanted = np.isfinite(scores) & (np.arange(self.beams) < nbest[:, None])
        owner, rank = np.nonzero(wanted)
        last, cut = places[owner, rank] // 2, places[owner, rank] % 2
        ends, rows = last // self.beams, last % self.beams
        tokens, log_probs = _traced(history, owner, ends, rows)
        found: list[list[Hypothesis]] = [[] for _ in sentences]
        for i, end, ids, own, flag in zip(
            owner.tolist(), ends.tolist(), tokens.tolist(), log_probs.tolist(), cut.tolist(), strict=True
        ):
            alpha = sentences[i].settings.alpha
            found[i].append(complete(ids[:end], own[: end + 1], alpha, bool(flag)))
        return found

    def _upload(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor


def counts_of(slots: int) -> list[int]:
    """Return the numbers of slots for which steps are captured: powers of four up to 64, then of two, and all.

    Steps of few sentences take as long as those of four times as many.
    """
    return [*(size for size in (1, 4, 16, *(64 << power for power in range(20))) if size < slots), slots]


def padded(rows: Sequence[Ids], width: int, value: int) -> NDArray[np.int32]:
    """Return rows as an array (B, width), filled up with a value."""
    lengths = np.array([len(row) for row in rows])
    full = np.full((len(rows), width), value, dtype=np.int32)
    full[np.arange(width) < lengths[:, None]] = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32)
    return full


def _traced(
    history: NDArray[np.int32], owner: NDArray[Any], ends: NDArray[Any], rows: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the tokens and log-probabilities (E, T) of E hypotheses, from the position and row of their last tokens.

    history: (B, 3, K, L).  owner: (E,) the sentence of each.
    """
    length = int(ends.max(initial=-1)) + 1
    if history.shape[2] == 1:
        chosen = history[owner, :, 0, :length]  # (E, 3, T)
        return chosen[:, 0], chosen[:, 1].view(np.float32)
    found = np.zeros((2, len(owner), length), dtype=np.int32)
    rows = rows.copy()
    for at in range(length - 1, -1, -1):
        chosen = history[owner, :, rows, at]  # (E, 3)
        found[:, :, at] = chosen[:, :2].T
        rows = np.where(at <= ends, chosen[:, 2], rows)
    return found[0], found[1].view(np.float32)


@dataclass(frozen=True)
class _Encoder:
    """A captured encoder, the memory that it reads, and those that the CPU fills in turn."""

    buffers: list[_HostCopy]
    memory: Tensor
    run: Callable[[], object]


class _HostCopy:
    """Memory of the host that a GPU reads or writes by itself, as a tensor and as an array."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self._event = torch.cuda.Event() if device.type == "cuda" else None
        self.tensor = torch.zeros(tuple(shape), dtype=dtype, pin_memory=self._event is not None)
        self.array: NDArray[Any] = self.tensor.numpy()

    def read(self, tensor: Tensor) -> _HostCopy:
        """Begin to copy a tensor of the device."""
        self.tensor.copy_(tensor, non_blocking=True)
        if self._event is not None:
            self._event.record()
        return self

    def complete(self) -> NDArray[Any]:
        """Return what was read, as soon as it is there."""
        if self._event is not None:
            self._event.synchronize()
        return self.array


class _Download:
    """Copies of tensors in the memory of the host, complete when `arrays` returns."""

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if not tensors[0].is_cuda:
            self._copies = [tensor.clone() for tensor in tensors]
            return
        self._copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def arrays(self) -> list[NDArray[Any]]:
        if self._event is not None:
            self._event.synchronize()
        return [copy.numpy() for copy in self._copies]
