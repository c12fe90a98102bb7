"""Searches of many callers at the same time, for a server: the interface, and its implementation for any backend.

With the native engine, and with CUDA graphs, sentences join the running search between two steps.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from dragoman.decoding.backend import BATCH_TOKENS, DecodingBackend
from dragoman.decoding.search_types import Hypothesis, SearchCall, SearchSettings


@dataclass
class Search:
    """A submitted search of one or more sentences.

    future: receives `settings.nbest` hypotheses per sentence, best first, or the exception of the search.  Once the
    result is there: queued, computed: longest time of a sentence in the queue and in the search, in seconds; rows:
    number of hypotheses that were being decoded when its last sentence ended.
    """

    count: int
    future: Future[list[list[Hypothesis]]] = field(default_factory=Future)
    queued: float = 0.0
    computed: float = 0.0
    rows: int = 0
    first_id: int = 0
    """Id of the first sentence in the service, from 1; 0 in a service without ids."""


class SearchService(ABC):
    """Searches sentences of many callers; each result is the same as that of `DecodingBackend.search`.

    total_rate: the sum of the rates of all requests, where a request whose ranks are its tokens times s has the rate
    1 / s.  The rank of new sentences grows by 1 / total_rate per source token that is admitted; with 0, the default,
    new sentences overtake the later ones of every request as long as there are new ones.
    """

    total_rate: float = 0.0

    @abstractmethod
    def submit(self, call: SearchCall, ranks: Sequence[float] | None = None) -> Search:
        """Queue sentences.

        ranks: one per sentence, at least 0 (default), relative to the rank that new sentences have at this time (see
        `total_rate`).  Sentences are admitted by
        ascending rank, equal ranks in the order of submission: with the numbers of tokens before each sentence of a
        request as ranks, short requests do not wait for long ones (start-time fair queueing, Goyal et al. 1996).
        Raises UsageError for an invalid request.
        """

    @abstractmethod
    def cancel(self, search: Search) -> None:
        """Drop a search; its future is cancelled, and its sentences free their rows before the next step."""

    def deliver_in(self, loop: asyncio.AbstractEventLoop) -> None:  # noqa: B027 (a service need not support it)
        """Set the results of futures in the thread of an event loop, if the service can, which saves a thread.

        Call it in the loop, before the first search.  The loop must run as long as the service.
        """

    def wait_until_prepared(self) -> None:  # noqa: B027 (most services are)
        """Return once searches do not wait for work that is done only once."""

    @property
    @abstractmethod
    def load(self) -> tuple[int, int]:
        """The numbers of sentences that wait and of hypotheses that are being decoded."""

    @abstractmethod
    def close(self) -> None:
        """Stop; unfinished searches are cancelled."""


class BatchedSearchService(SearchService):
    """Searches everything that waits as one batch, in one thread; sentences that arrive meanwhile wait for its end.

    batch_tokens: as for `DecodingBackend.search`; at most four batches of that size are searched at once.
    """

    def __init__(self, backend: DecodingBackend, batch_tokens: int = BATCH_TOKENS) -> None:
        self._backend, self._batch_tokens = backend, batch_tokens
        self._arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()  # faster than queue.PriorityQueue
        self._queue: list[tuple[float, int, Waiting | None]] = []  # a heap, of the search thread only
        self._numbers = itertools.count(1)
        self._virtual_time = 0.0
        self._active = 0
        self._thread = threading.Thread(target=self._run, name="dragoman-search", daemon=True)
        self._thread.start()

    def submit(self, call: SearchCall, ranks: Sequence[float] | None = None) -> Search:
        search = Search(len(call.sources))
        rank = self._virtual_time + (min(ranks) if ranks else 0.0)
        self._arrived.put((rank, next(self._numbers), Waiting(search, call)))
        return search

    def cancel(self, search: Search) -> None:
        search.future.cancel()

    @property
    def load(self) -> tuple[int, int]:
        return self._arrived.qsize() + len(self._queue), self._active

    def close(self) -> None:
        self._arrived.put((float("-inf"), 0, None))
        self._thread.join()
        while not self._is_empty():
            waiting = self._next()
            if waiting is not None:
                waiting.search.future.cancel()

    def _is_empty(self) -> bool:
        return not self._queue and self._arrived.empty()

    def _run(self) -> None:
        while True:
            batch, tokens = [self._next()], 0
            while batch[-1] is not None:
                tokens += batch[-1].call.settings.beam * sum(map(len, batch[-1].call.sources))
                if tokens >= 4 * self._batch_tokens or self._is_empty():
                    break
                batch.append(self._next())
            groups: dict[SearchSettings, list[Waiting]] = {}
            for waiting in batch:
                if waiting is not None and waiting.search.future.set_running_or_notify_cancel():
                    groups.setdefault(waiting.call.settings, []).append(waiting)
            for settings, group in groups.items():
                self._search(group, settings)
            if batch[-1] is None:
                return

    def _next(self) -> Waiting | None:
        while not (self._queue and self._arrived.empty()):
            heapq.heappush(self._queue, self._arrived.get())
        rank, _, waiting = heapq.heappop(self._queue)
        self._virtual_time = max(self._virtual_time, rank)
        if waiting is not None and self.total_rate > 0:
            self._virtual_time += sum(map(len, waiting.call.sources)) / self.total_rate
        return waiting

    def _search(self, group: Sequence[Waiting], settings: SearchSettings) -> None:
        calls = [waiting.call for waiting in group]
        sources = [ids for call in calls for ids in call.sources]
        prefixes = [ids for call in calls for ids in call.prefixes]
        phrases = [own for call in calls for own in call.phrases]
        rows = settings.beam * len(sources)
        begun, self._active = time.monotonic(), rows
        try:
            found = self._backend.search(SearchCall(sources, settings, prefixes, phrases), self._batch_tokens)
        except Exception as error:
            for waiting in group:
                waiting.search.future.set_exception(error)
            return
        finally:
            self._active = 0
        for waiting in group:
            search = waiting.search
            search.queued, search.computed = begun - waiting.submitted, time.monotonic() - begun
            search.rows = rows
            search.future.set_result(found[: search.count])
            del found[: search.count]


@dataclass(eq=False, slots=True)
class Waiting:
    """A search in the queue.

    Once it is admitted: begun, found, missing: the time, the hypotheses of each sentence, and the number of others.
    """

    search: Search
    call: SearchCall
    submitted: float = field(default_factory=time.monotonic)
    begun: float = 0.0
    found: list[list[Hypothesis]] = field(default_factory=list)
    missing: int = 0
