"""CUDA graphs as a service for searches of many callers: sentences join the running search between two steps."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress

from dragoman.decoding.cuda_graphs.backend import SLOT_SIZES, CudaGraphBackend
from dragoman.decoding.cuda_graphs.slot_search import Sentence, at_least
from dragoman.decoding.search_types import Hypothesis, SearchSettings, best
from dragoman.serve.search.service import BatchedSearchService, Waiting
from dragoman.tokenizers import BOS, EOS, PAD

_SIZE = 256
"""Least size of the slots of a service, so that sentences of all usual lengths join the same search."""


class SlotSearchService(BatchedSearchService):
    """A search that sentences join as long as it has the same number of beams; others begin when it has ended.

    What slots do not support, such as sampling and phrases, is searched batch by batch.  On a GPU, all steps and
    encoders for the beams of `usual` are captured before the first search, those of others when they are needed.
    """

    _backend: CudaGraphBackend

    def __init__(self, backend: CudaGraphBackend, batch_tokens: int, usual: SearchSettings | None = None) -> None:
        self._rest: deque[Sentence] = deque()  # sentences of the searches that are being admitted
        self._left: list[Waiting | None] = []  # taken from the queue, but not for the running search
        self._running: set[Waiting] = set()
        self._slots = {"cuda": 256, "cpu": 16}[backend.model.device.type]
        self._usual, self._prepared = usual or SearchSettings(), threading.Event()
        self._fitting: tuple[SearchSettings | None, float] = None, 0
        """The settings of the last search, and the longest sentence that fits into slots with them."""
        super().__init__(backend, batch_tokens)

    def wait_until_prepared(self) -> None:
        self._prepared.wait()

    def _run(self) -> None:
        if self._backend.captures and self._backend.longest_in_slots(self._usual):
            slots = self._backend.slots(self._usual.beam, _SIZE, self._slots, "service")
            with suppress(Exception), slots as search:  # such as too little memory: searches report it, or need less
                for capture in search.captures:
                    if self._is_empty():  # otherwise, the service is being closed, or did not wait
                        capture()
        self._prepared.set()
        while True:
            waiting = self._left.pop() if self._left else self._next()
            if waiting is None:
                return
            if self._key(waiting) is not None:
                self._search_slots(waiting)
            elif waiting.search.future.set_running_or_notify_cancel():
                self._search([waiting], waiting.call.settings)

    def _key(self, waiting: Waiting) -> tuple[int, int] | None:
        """Return the beams and the size of slots for a search, None if slots do not support it."""
        call, settings, longest = waiting.call, waiting.call.settings, 0
        if self._fitting[0] is not settings:
            self._fitting = settings, self._backend.longest_in_slots(settings)
        if any(call.phrases):
            return None
        for source, prefix in zip(call.sources, call.prefixes, strict=True):
            if not source or (prefix and {PAD, BOS, EOS} & set(prefix)):
                return None
            longest = max(longest, len(source), settings.limit(len(source), len(prefix)))
        if longest > self._fitting[1]:
            return None
        return settings.beam, max(_SIZE, at_least(longest, SLOT_SIZES))

    def _search_slots(self, first: Waiting) -> None:
        """Search sentences, and all that arrive meanwhile and fit, until none is left."""
        key = self._key(first)
        assert key is not None
        self._admit(first)

        def take(free: int, used: int) -> list[Sentence]:
            self._active = used * key[0]
            while not self._left and len(self._rest) < free and not self._is_empty():
                waiting = self._next()
                own = None if waiting is None else self._key(waiting)
                if waiting is not None and own is not None and own[0] == key[0] and own[1] <= key[1]:
                    self._admit(waiting)
                else:
                    self._left.append(waiting)
            return [self._rest.popleft() for _ in range(min(free, len(self._rest)))]

        try:
            with self._backend.slots(*key, self._slots, "service") as search:
                search.run(take, self._deliver, captures=not self._backend.captures)
        except Exception as error:
            self._rest.clear()
            for waiting in self._running:
                waiting.search.future.set_exception(error)
            self._running.clear()
        finally:
            self._active = 0

    def _admit(self, waiting: Waiting) -> None:
        if not waiting.search.future.set_running_or_notify_cancel():
            return
        call = waiting.call
        waiting.missing, waiting.begun = len(call.sources), time.monotonic()
        if not waiting.missing:
            waiting.search.future.set_result([])
            return
        waiting.found = [[] for _ in call.sources]
        self._running.add(waiting)
        for index, (source, prefix) in enumerate(zip(call.sources, call.prefixes, strict=True)):
            self._rest.append(Sentence(source, prefix, call.settings, (waiting, index)))

    def _deliver(self, sentence: Sentence, hypotheses: list[Hypothesis]) -> None:
        waiting, index = sentence.tag
        waiting.found[index] = hypotheses
        waiting.missing -= 1
        if waiting.missing:
            return
        self._running.remove(waiting)
        search = waiting.search
        search.queued, search.computed = waiting.begun - waiting.submitted, time.monotonic() - waiting.begun
        search.rows = self._active
        try:
            search.future.set_result([best(own, sentence.settings.nbest) for own in waiting.found])
        except Exception as error:
            search.future.set_exception(error)
