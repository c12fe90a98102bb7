"""The native engine as a service for searches of many callers."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import threading
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dragoman.decoding.native.backend import NativeBackend
from dragoman.decoding.native.engine import ERROR_SIZE, raise_for_status
from dragoman.decoding.search_types import Hypothesis, SearchCall
from dragoman.errors import DragomanError, UsageError
from dragoman.serve.search.service import BatchedSearchService, Search, SearchService

_EXTRA = 256
"""Target tokens beyond the longest source that a slot holds."""
_MEMORY = 1 << 30
_WAIT = 0.5
"""Seconds after which the waiting thread checks whether the service was closed."""


class _Limits(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("workers", "rows", "source_length", "target_length", "shortlist_size")],
        ("memory", ctypes.c_int64),
    ]


@dataclass
class _Pending:
    search: Search
    first: int
    found: list[list[Hypothesis]]
    missing: int


class NativeSearchService(SearchService):
    """A search that never ends, on `backend.threads` threads.

    What the engine does not support, such as sampling and very long texts, is searched by a `BatchedSearchService`.

    rows: hypotheses that one thread decodes at once; default: as in `Engine`.  memory: bytes of the caches of all
    threads.  Raises DragomanError if the engine refuses the limits.
    """

    def __init__(self, backend: NativeBackend, max_source: int, rows: int | None = None, memory: int = _MEMORY) -> None:
        engine = backend.engine
        self._backend, self._engine, self._functions = backend, engine, engine.functions
        lengths = min(max_source, engine.positions), min(max_source + _EXTRA, engine.positions)
        shortlist, size = backend.shortlist, 0
        if shortlist is not None:  # the frequent tokens, a list per source token, and a forced prefix or phrases
            size = min(len(shortlist.frequent) + shortlist.best * lengths[0] + lengths[1], engine.target_size)
        self._limits = _Limits(backend.threads, engine.rows if rows is None else rows, *lengths, size, memory)
        self._process = os.getpid()
        error = ctypes.create_string_buffer(ERROR_SIZE)
        self._service = self._functions.dragoman_service_open(engine.handle, ctypes.byref(self._limits), error)
        if not self._service:
            raise DragomanError(error.value.decode("utf-8", "replace"))
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}  # by the ids of their sentences
        self._closed = False
        self._others: SearchService | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1
        self._counts, self._error = (ctypes.c_int64 * 3)(), ctypes.create_string_buffer(ERROR_SIZE)

    def deliver_in(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._thread is None and self._loop is None and hasattr(os, "eventfd"):  # Linux
            self._loop, self._descriptor = loop, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            loop.add_reader(self._descriptor, self._read)
            self._functions.dragoman_service_notify(self._service, self._descriptor)

    def submit(self, call: SearchCall, ranks: Sequence[float] | None = None) -> Search:
        sources, arguments = call.sources, self._backend.search_arguments(call)
        if (
            call.settings.sample
            or call.settings.beam > self._limits.rows
            or max(map(len, sources), default=0) > self._limits.source_length
            or max(arguments["limits"], default=0) > self._limits.target_length
        ):
            with self._lock:
                self._others = self._others or BatchedSearchService(self._backend)
                self._others.total_rate = self.total_rate
            return self._others.submit(call, ranks)
        search = Search(len(sources))
        if not sources:
            search.future.set_result([])
            return search
        request = self._engine.request(**arguments)
        order = array("d", ranks or [0.0] * len(sources))
        if len(order) != len(sources):
            raise UsageError(f"{len(order)} ranks for {len(sources)} sentences; give one per sentence")
        first, error = ctypes.c_int64(), ctypes.create_string_buffer(ERROR_SIZE)
        submitted = ctypes.byref(request), order.buffer_info()[0], self.total_rate, ctypes.byref(first)
        with self._lock:  # a result that arrives at once waits until the search is registered
            if self._closed:
                raise DragomanError("the search service is closed")
            status = self._functions.dragoman_service_submit(self._service, *submitted, error)
            raise_for_status(status, error)
            search.first_id = first.value
            pending = _Pending(search, first.value, [[] for _ in sources], len(sources))
            self._pending.update((first.value + i, pending) for i in range(len(sources)))
            if self._thread is None and self._loop is None:
                self._thread = threading.Thread(target=self._collect, name="dragoman-results", daemon=True)
                self._thread.start()
        return search

    def cancel(self, search: Search) -> None:
        if not search.future.cancel():
            return
        with self._lock:
            submitted = range(search.first_id, search.first_id + search.count) if search.first_id else ()
            ids = array("q", [number for number in submitted if self._pending.pop(number, None)])
            if ids and not self._closed:
                self._functions.dragoman_service_cancel(self._service, ids.buffer_info()[0], len(ids))

    @property
    def load(self) -> tuple[int, int]:
        with self._lock:
            return (0, 0) if self._closed else self._load()

    def _load(self) -> tuple[int, int]:
        load = (ctypes.c_int64 * 2)()
        self._functions.dragoman_service_load(self._service, ctypes.addressof(load))
        return load[0], load[1]

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._thread is not None and self._process == os.getpid():
            self._thread.join()
        self._functions.dragoman_service_close(self._service)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.remove_reader, self._descriptor)
            self._loop.call_soon_threadsafe(os.close, self._descriptor)
        for pending in {id(pending): pending for pending in self._pending.values()}.values():
            pending.search.future.cancel()
        self._pending.clear()
        if self._others is not None:
            self._others.close()

    def _collect(self) -> None:
        """Wait for results and pass them on, until the service is closed; runs in a thread."""
        while not self._closed:
            self._wait(_WAIT)
            with self._lock:
                done = self._received()
            self._finish(done)

    def _read(self) -> None:
        """Pass results on; called by the event loop."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
        with self._lock:
            if self._closed:
                return
            self._wait(0)
            done = self._received()
        self._finish(done)

    def _wait(self, seconds: float) -> None:
        self._functions.dragoman_service_wait(self._service, seconds, ctypes.addressof(self._counts), self._error)

    def _received(self) -> list[_Pending]:
        """Return the searches that the results of the last wait complete.  Called with the lock held."""
        results, hypotheses, tokens = self._counts
        if not results:
            return []
        sizes = results, results, 2 * results, *[hypotheses] * 4, *[tokens] * 2
        columns: list[array[Any]] = [
            array(code, bytes(array(code).itemsize * size)) for code, size in zip("qidiiddif", sizes, strict=True)
        ]
        self._functions.dragoman_service_collect(self._service, *(column.buffer_info()[0] for column in columns))
        ids, counts, times, lengths, truncated, totals, scores, all_tokens, log_probs = columns
        ends = list(itertools.accumulate((length + 1 for length in lengths), initial=0))
        done: list[_Pending] = []
        hypothesis, active = 0, self._load()[1]
        for i, (number, size) in enumerate(zip(ids, counts, strict=True)):
            rows = range(hypothesis, hypothesis + size)
            hypothesis += size
            pending = self._pending.pop(number, None)
            if pending is None:  # cancelled
                continue
            pending.found[number - pending.first] = [
                Hypothesis(
                    all_tokens[ends[k] : ends[k] + lengths[k]].tolist(), scores[k], totals[k],
                    log_probs[ends[k] : ends[k + 1]].tolist(), bool(truncated[k]),
                )
                for k in rows
            ]  # fmt: skip
            pending.missing -= 1
            search = pending.search
            search.queued = max(search.queued, times[2 * i])
            search.computed = max(search.computed, times[2 * i + 1])
            search.rows = active + size
            if not pending.missing:
                done.append(pending)
        return done

    def _finish(self, done: Sequence[_Pending]) -> None:
        """Set the results of searches.  Called without the lock, because callbacks may call the service."""
        for pending in done:
            future: Any = pending.search.future
            if not future.set_running_or_notify_cancel():
                continue
            if all(pending.found):
                future.set_result(pending.found)
            else:
                future.set_exception(DragomanError(self._error.value.decode("utf-8", "replace")))
