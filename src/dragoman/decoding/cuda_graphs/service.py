"""Searches of many callers on a GPU: sentences join the running search between two steps."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from dragoman.decoding.cuda_graphs.backend import CudaGraphBackend, slot_size
from dragoman.decoding.cuda_graphs.slot_search import Sentence
from dragoman.decoding.hypothesis import Hypothesis, best
from dragoman.decoding.service import BatchedSearchService, Waiting
from dragoman.tokenizers import BOS, EOS, PAD

_SLOTS = {"cuda": 256, "cpu": 16}
_SIZE = 256
"""Least size of the slots of a service, so that sentences of all usual lengths join the same search."""
_BEAMS = 4
"""Beams for which the steps are captured before the first search (`SearchSettings.beam`)."""


@dataclass(eq=False)
class _Running:
    """The hypotheses found for a search so far; the time of its first sentence in a slot."""

    waiting: Waiting
    missing: int
    found: list[list[Hypothesis]]
    begun: float = field(default_factory=time.monotonic)


class SlotSearchService(BatchedSearchService):
    """A search that sentences join as long as it has the same number of beams; others begin when it has ended.

    What slots do not support, such as sampling and phrases, is searched batch by batch.  Steps are captured as CUDA
    graphs while nothing else is to do.
    """

    _backend: CudaGraphBackend

    def __init__(self, backend: CudaGraphBackend, batch_tokens: int) -> None:
        self._rest: deque[Sentence] = deque()  # sentences of the searches that are being admitted
        self._left: list[Waiting | None] = []  # taken from the queue, but not for the running search
        self._running: dict[int, _Running] = {}
        super().__init__(backend, batch_tokens)

    def _run(self) -> None:
        if self._backend.model.device.type == "cuda":
            with suppress(RuntimeError):  # such as too little memory: searches then report it, or need less
                self._prepare(_BEAMS, _SIZE)
        last: tuple[int, int] | None = None
        while True:
            while last is not None and not self._left and self._queue.empty() and self._prepare(*last, 1):
                pass  # one more step is captured
            waiting = self._left.pop() if self._left else self._next()
            if waiting is None:
                return
            if self._key(waiting) is not None:
                last = self._search_slots(waiting)
            elif waiting.search.future.set_running_or_notify_cancel():
                self._search([waiting], waiting.settings)

    def _prepare(self, beams: int, size: int, most: int = 64) -> bool:
        """Capture up to `most` steps that are not captured yet; return whether there was one."""
        with self._backend.slots(beams, size, self._slots, "service") as search:
            counts = search.unprepared()[:most]
            for count in counts:
                if self._queue.empty():
                    search.prepare([count])
        return bool(counts)

    @property
    def _slots(self) -> int:
        return _SLOTS[self._backend.model.device.type]

    def _key(self, waiting: Waiting) -> tuple[int, int] | None:
        """Return the beams and the size of slots for a search, None if slots do not support it."""
        settings, size = waiting.settings, _SIZE
        if any(waiting.phrases):
            return None
        for source, prefix in zip(waiting.sources, waiting.prefixes, strict=True):
            if {PAD, BOS, EOS} & set(prefix) or not self._backend.has_slots_for(settings, source, prefix):
                return None
            size = max(size, slot_size(Sentence(source, prefix, settings)))
        return settings.beam, size

    def _search_slots(self, first: Waiting) -> tuple[int, int]:
        """Search sentences, and all that arrive meanwhile and fit, until none is left."""
        key = self._key(first)
        assert key is not None
        self._admit(first)

        def take(free: int, used: int) -> list[Sentence]:
            self._active = used * key[0]
            while not self._left and len(self._rest) < free and not self._queue.empty():
                waiting = self._next()
                own = None if waiting is None else self._key(waiting)
                if waiting is not None and own is not None and own[0] == key[0] and own[1] <= key[1]:
                    self._admit(waiting)
                else:
                    self._left.append(waiting)
            return [self._rest.popleft() for _ in range(min(free, len(self._rest)))]

        try:
            with self._backend.slots(*key, self._slots, "service") as search:
                search.run(take, self._deliver)
        except Exception as error:
            self._rest.clear()
            for running in self._running.values():
                running.waiting.search.future.set_exception(error)
            self._running.clear()
        finally:
            self._active = 0
        return key

    def _admit(self, waiting: Waiting) -> None:
        if not waiting.search.future.set_running_or_notify_cancel():
            return
        count = len(waiting.sources)
        if not count:
            waiting.search.future.set_result([])
            return
        running = self._running[id(waiting)] = _Running(waiting, count, [[] for _ in range(count)])
        for index, (source, prefix) in enumerate(zip(waiting.sources, waiting.prefixes, strict=True)):
            self._rest.append(Sentence(source, prefix, waiting.settings, (running, index)))

    def _deliver(self, sentence: Sentence, hypotheses: list[Hypothesis]) -> None:
        running, index = sentence.tag
        running.found[index] = hypotheses
        running.missing -= 1
        if running.missing:
            return
        waiting, now = running.waiting, time.monotonic()
        del self._running[id(waiting)]
        search = waiting.search
        search.queued, search.computed = running.begun - waiting.submitted, now - running.begun
        search.rows = self._active
        try:
            search.future.set_result([best(own, waiting.settings.nbest) for own in running.found])
        except Exception as error:
            search.future.set_exception(error)
