"""The translation directions of a server: models by language pair, and pivoting through a third language."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

from dragoman.decoding.loader import open_service
from dragoman.decoding.service import Search, SearchService
from dragoman.errors import UsageError
from dragoman.pipelines.translated import SearchCall, Translation
from dragoman.pipelines.translation import Translator
from dragoman.serve.admission import Admission, Ticket

__all__ = ["BlockingTranslator", "Direction", "Directions"]

_SPLIT_HERE = 4000
"""Characters up to which a text is split and encoded on the event loop; longer ones would delay other requests."""

_THREADS = 32
"""Texts with markup and documents that are translated at the same time."""

Result = TypeVar("Result")


class Direction:
    """A translator from `source` to `target` (language codes) with the service that runs its searches.

    observe: called with each finished search, for metrics.
    """

    def __init__(self, translator: Translator, name: str, service: SearchService | None = None) -> None:
        source, target = translator.languages
        if source is None or target is None:
            raise UsageError(f"model {name}: its configuration names no languages; a server needs them")
        self.translator, self.name, self.source, self.target = translator, name, source, target
        self.service = service or open_service(translator.backend, translator.max_source)
        self.observe: Callable[[Search], None] = lambda search: None

    @classmethod
    def load(cls, path: Path, name: str, source: str | None = None, target: str | None = None) -> Direction:
        """Load a model; source, target: replace the languages of its configuration.

        Raises ModelFolderError, and UsageError for a model that does not translate.
        """
        translator = Translator.load(path, "cpu")
        if source or target:
            own = translator.languages
            translator.describe_data(translator.profile, (source or own[0], target or own[1]))
        return cls(translator, name)

    async def translate(self, texts: Sequence[str], ticket: Ticket, **settings: Any) -> list[Translation]:
        """Return one translation per text, equal to that of `Translator.translate` with the same settings.

        Cancelling the call cancels its searches.  Raises UsageError, and DragomanError if a search fails.
        """
        searches = self.translator.searches(texts, **settings)
        long = sum(map(len, texts)) > _SPLIT_HERE

        async def advance(found: Any) -> Any:
            """Run the code between two searches; the result is the next search, or the translations."""
            return await asyncio.to_thread(_send, searches, found) if long else _send(searches, found)

        call = await advance(None)
        while not isinstance(call, list):
            search = self.submit(call, ticket)
            try:
                await _done(search)
            except asyncio.CancelledError:
                self.service.cancel(search)
                raise
            found = search.future.result()
            self.observe(search)
            call = await advance(found)
        return call

    def submit(self, call: SearchCall, ticket: Ticket) -> Search:
        """Queue the sentences of a call, ranked by the ticket of their request."""
        ranks = ticket.ranks(call.sources)
        return self.service.submit(call.sources, call.prefixes, call.settings, ranks, call.phrases)

    def close(self) -> None:
        """Stop the service."""
        self.service.close()


async def _done(search: Search) -> None:
    """Wait for the end of a search."""
    if search.future.done():
        return
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    waiter = loop.create_future()

    def wake(*_: Any) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def finished(future: Any) -> None:
        if threading.get_ident() == thread:
            wake()
        else:
            loop.call_soon_threadsafe(wake)

    search.future.add_done_callback(finished)
    await waiter


def _send(searches: Any, found: Any) -> Any:
    try:
        return searches.send(found)
    except StopIteration as stop:
        return stop.value


class BlockingTranslator:
    """A direction for code that runs in a thread: it has the attributes of its translator and searches in the service.

    `translate` raises CancelledError once `cancel` was called.
    """

    def __init__(self, direction: Direction, ticket: Ticket) -> None:
        self._direction, self._ticket = direction, ticket
        self._lock = threading.Lock()
        self._cancelled = False
        self._search: Search | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._direction.translator, name)

    def translate(self, texts: Sequence[str], **settings: Any) -> list[Translation]:
        """Return what `Translator.translate` returns."""
        searches = self._direction.translator.searches(texts, **settings)
        call = _send(searches, None)
        while not isinstance(call, list):
            with self._lock:
                if self._cancelled:
                    raise CancelledError
                self._search = self._direction.submit(call, self._ticket)
            found = self._search.future.result()
            self._direction.observe(self._search)
            call = _send(searches, found)
        return call

    def cancel(self) -> None:
        """End the running search, and refuse others."""
        with self._lock:
            self._cancelled = True
            if self._search is not None:
                self._direction.service.cancel(self._search)


class Directions:
    """All directions of a server; of two models of the same direction, the first one is used.

    max_tokens: see `Admission`; shared by all directions.
    """

    def __init__(self, directions: Iterable[Direction], max_tokens: int = 200_000) -> None:
        self.admission = Admission(max_tokens)
        self._threads = ThreadPoolExecutor(_THREADS, "dragoman-markup")
        self.by_pair: dict[tuple[str, str], Direction] = {}
        self.unused: list[tuple[Direction, Direction]] = []
        """Models of a direction that has another model, with that model."""
        for direction in directions:
            used = self.by_pair.setdefault((direction.source, direction.target), direction)
            if used is not direction:
                direction.close()
                self.unused.append((direction, used))
        if not self.by_pair:
            raise UsageError("no models to serve; specify at least one translation model")

    @property
    def sources(self) -> list[str]:
        """Source languages, in alphabetical order."""
        return sorted({source for source, _ in self.by_pair})

    @property
    def languages(self) -> list[str]:
        """All languages, in alphabetical order."""
        return sorted({code for pair in self.by_pair for code in pair})

    def targets(self, source: str) -> list[str]:
        """Languages that can be reached from `source`, directly or by way of one other language."""
        others = {target for _, target in self.by_pair if target != source}
        return sorted(target for target in others if self.route(source, target))

    def route(self, source: str, target: str) -> list[Direction]:
        """Return the model, or the two models through the first pivot language in alphabetical order; [] for none."""
        if (source, target) in self.by_pair:
            return [self.by_pair[source, target]]
        pivots = sorted(mid for first, mid in self.by_pair if first == source and (mid, target) in self.by_pair)
        return [self.by_pair[source, pivots[0]], self.by_pair[pivots[0], target]] if pivots else []

    async def translate(
        self,
        route: Sequence[Direction],
        texts: Sequence[str],
        client: str,
        **settings: Any,
    ) -> list[list[Translation]]:
        """Return the translations of each model of a route; the last list has the results.

        client: name of the caller; callers share the machine equally.  settings: as for `Translator.translate`; the
        search of the first of two models returns one hypothesis and uses no glossary.  Raises Overloaded.
        """
        ticket = self.admission.accept(client, len(route) * _estimate(texts))
        try:
            found: list[list[Translation]] = []
            for position, direction in enumerate(route, start=1):
                own = settings if position == len(route) else {**settings, "nbest": 1, "glossary": None}
                found.append(await direction.translate(texts, ticket, **own))
                texts = [translation.text for translation in found[-1]]
            return found
        finally:
            self.admission.finish(ticket)

    async def run(
        self,
        route: Sequence[Direction],
        work: Callable[[Translator, Result], Result],
        source: Result,
        characters: int,
        client: str,
    ) -> Result:
        """Return the result of `work`, which translates documents or texts with markup, of the last model of a route.

        work: called in a thread with a translator and the result of the model before it, at first `source`.
        characters: of the source, for admission.  Raises Overloaded, and what `work` raises.
        """
        ticket = self.admission.accept(client, len(route) * max(1, characters // 4))
        try:
            for direction in route:
                translator = BlockingTranslator(direction, ticket)
                future = asyncio.get_running_loop().run_in_executor(self._threads, work, cast(Any, translator), source)
                try:
                    source = await future
                except asyncio.CancelledError:
                    translator.cancel()
                    raise
            return source
        finally:
            self.admission.finish(ticket)

    def deliver_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive the results of searches in an event loop; see `SearchService`."""
        for direction in self.by_pair.values():
            direction.service.deliver_in(loop)

    def observe(self, observer: Callable[[Search], None]) -> None:
        """Call `observer` with each finished search, in any thread."""
        for direction in self.by_pair.values():
            direction.observe = observer

    def load(self) -> tuple[int, int]:
        """Sentences that wait and hypotheses that are decoded, of all directions."""
        loads = [direction.service.load for direction in self.by_pair.values()]
        waiting, active = (sum(column) for column in zip(*loads, strict=True))
        return waiting, active

    def close(self) -> None:
        """Stop all services."""
        for direction in self.by_pair.values():
            direction.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _estimate(texts: Sequence[str]) -> int:
    """Return about the number of tokens of texts, without encoding them."""
    return sum(max(1, len(text.encode("utf-8", "replace")) // 4) for text in texts)
