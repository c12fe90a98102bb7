"""The translation directions of a server: models by language pair, and pivoting through a third language."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from dragoman.decoding.loader import open_service
from dragoman.decoding.service import Search, SearchService
from dragoman.errors import DragomanError, UsageError
from dragoman.pipelines.translated import SearchCall, Translation
from dragoman.pipelines.translation import Translator
from dragoman.serve.admission import Admission, Ticket
from dragoman.serve.cache import TranslationCache, settings_key
from dragoman.serve.model_memory import ModelMemory, Slot
from dragoman.serve.model_source import ModelSource

__all__ = ["BlockingTranslator", "Direction", "Directions"]

_SPLIT_HERE = 4000
"""Characters up to which a text is split and encoded on the event loop; longer ones would delay other requests."""

_THREADS = 32
"""Texts with markup and documents that are translated at the same time."""

Result = TypeVar("Result")


class Direction(Slot):
    """A translator from `source` to `target` (language codes) with the service that runs its searches.

    model: a translator, or a model that is loaded by `open`; until then, `translator` and `service` raise
    DragomanError.  observe: called with each finished search, for metrics.
    """

    def __init__(self, model: Translator | ModelSource, name: str, service: SearchService | None = None) -> None:
        super().__init__()
        source, target = model.languages
        if source is None or target is None:
            raise UsageError(f"model {name}: its configuration names no languages; a server needs them")
        self.name, self.source, self.target = name, source, target
        self.observe: Callable[[Search], None] = lambda search: None
        self._opened: tuple[Translator, SearchService] | None = None
        self.model = model if isinstance(model, ModelSource) else None
        if isinstance(model, ModelSource):
            self.beam, self.fingerprint = model.beam, model.fingerprint
            self._bytes, self.size_known = model.size
        else:
            self._opened = model, service or open_service(model.backend, model.max_source)
            self.beam, self.fingerprint = model.settings.beam, ""
            self._bytes, self.size_known = 0, True

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    def open(self) -> None:
        """Load the model; called in a thread.  Raises DragomanError."""
        if self.model is None or self._opened is not None:
            return
        translator, self.fingerprint = self.model.load()
        self._bytes, self.size_known = self.model.loaded_size(translator), True
        self._opened = translator, open_service(translator.backend, translator.max_source)

    def deliver_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive the results of searches in an event loop; see `SearchService`."""
        self.service.deliver_in(loop)

    def close(self) -> None:
        """Stop the service, and drop the model."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()

    @property
    def translator(self) -> Translator:
        """The translator of a model that is loaded."""
        return self._parts()[0]

    @property
    def service(self) -> SearchService:
        """The service of a model that is loaded."""
        return self._parts()[1]

    @property
    def load(self) -> tuple[int, int]:
        """Sentences that wait and hypotheses that are decoded."""
        opened = self._opened
        return (0, 0) if opened is None else opened[1].load

    def _parts(self) -> tuple[Translator, SearchService]:
        if self._opened is None:
            raise DragomanError(f"the model {self.name} is not loaded")
        return self._opened

    def is_same(self, model: ModelSource) -> bool:
        """Return whether a model of a configuration is this one, with the same files."""
        own = self.model
        return (
            own is not None
            and (own.folder, own.languages) == (model.folder, model.languages)
            and self.fingerprint == model.fingerprint
        )

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

    max_tokens: see `Admission`; shared by all directions.  memory: bytes of the weights of all loaded models, 0 = no
    limit.  cache: bytes of translations that are kept, 0 = none.
    """

    def __init__(
        self, directions: Iterable[Direction], max_tokens: int = 200_000, memory: int = 0, cache: int = 0
    ) -> None:
        self.admission = Admission(max_tokens)
        self.memory, self.cache = ModelMemory(memory), TranslationCache(cache)
        self._threads = ThreadPoolExecutor(_THREADS, "dragoman-markup")
        self._observer: Callable[[Search], None] = lambda search: None
        self.by_pair: dict[tuple[str, str], Direction] = {}
        self.unused: list[tuple[Direction, Direction]] = []
        """Models of a direction that has another model, with that model."""
        self.replace(directions)
        for direction, _ in self.unused:
            direction.close()

    def replace(self, directions: Iterable[Direction]) -> None:
        """Use these models for new requests; others are unloaded as soon as no request uses them.

        Raises UsageError if there are none.
        """
        by_pair: dict[tuple[str, str], Direction] = {}
        unused = []
        for direction in directions:
            used = by_pair.setdefault((direction.source, direction.target), direction)
            if used is not direction:
                unused.append((direction, used))
        if not by_pair:
            raise UsageError("no models to serve; specify at least one translation model")
        gone = set(self.by_pair.values()) - set(by_pair.values())
        self.by_pair, self.unused = by_pair, unused
        for direction in by_pair.values():
            direction.observe = self._observer
            if direction.is_open:
                self.memory.loaded.setdefault(direction)
        for direction in gone:
            self.memory.retire(direction)
            self.cache.forget(_cached_as(direction))

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
            with self._pinned(route) as pinned:
                for position, direction in enumerate(pinned, start=1):
                    own = settings if position == len(pinned) else {**settings, "nbest": 1, "glossary": None}
                    async with self.memory.using(direction):
                        found.append(await self._translate(direction, texts, ticket, own))
                    texts = [translation.text for translation in found[-1]]
            return found
        finally:
            self.admission.finish(ticket)

    async def _translate(
        self, direction: Direction, texts: Sequence[str], ticket: Ticket, settings: dict[str, Any]
    ) -> list[Translation]:
        """Return the translations of a loaded model, from the cache if they are there."""
        key = settings_key(direction.translator.settings, **settings) if self.cache.limit else None
        if key is None:
            return await direction.translate(texts, ticket, **settings)
        model = _cached_as(direction)
        found = [self.cache.get(model, key, text) for text in texts]
        missing = [i for i, translation in enumerate(found) if translation is None]
        new = await direction.translate([texts[i] for i in missing], ticket, **settings) if missing else []
        for i, translation in zip(missing, new, strict=True):
            self.cache.put(model, key, texts[i], translation)
            found[i] = translation
        return cast(list[Translation], found)

    @contextmanager
    def _pinned(self, route: Sequence[Direction]) -> Iterator[list[Direction]]:
        """Keep the models of a route while a request uses them, though others may replace them.

        Those that were replaced since the route was found give way to their successors.
        """
        pinned = [self._current(direction) for direction in route]
        for direction in pinned:
            direction.pins += 1
        try:
            yield pinned
        finally:
            for direction in pinned:
                self.memory.unpin(direction)

    def _current(self, direction: Direction) -> Direction:
        if not direction.retired:
            return direction
        current = self.by_pair.get((direction.source, direction.target))
        if current is None:
            raise UsageError(f"{direction.source} to {direction.target} is not translated any more")
        return current

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
            with self._pinned(route) as pinned:
                for direction in pinned:
                    async with self.memory.using(direction):
                        source = await self._run(work, BlockingTranslator(direction, ticket), source)
            return source
        finally:
            self.admission.finish(ticket)

    async def _run(
        self, work: Callable[[Translator, Result], Result], translator: BlockingTranslator, source: Result
    ) -> Result:
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, cast(Any, translator), source)
        try:
            return await future
        except asyncio.CancelledError:
            translator.cancel()
            raise

    def deliver_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive the results of searches in an event loop; see `SearchService`."""
        for direction in self.by_pair.values():
            if direction.is_open:
                direction.deliver_in(loop)

    def observe(self, observer: Callable[[Search], None]) -> None:
        """Call `observer` with each finished search, in any thread."""
        self._observer = observer
        for direction in self.by_pair.values():
            direction.observe = observer

    def load(self) -> tuple[int, int]:
        """Sentences that wait and hypotheses that are decoded, of all loaded models; called in any thread."""
        loads = [slot.load for slot in list(self.memory.loaded) if isinstance(slot, Direction)]
        return sum(waiting for waiting, _ in loads), sum(active for _, active in loads)

    def close(self) -> None:
        """Stop all services."""
        for slot in {*self.memory.loaded, *self.by_pair.values()}:
            slot.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _cached_as(direction: Direction) -> tuple[str, str, str]:
    """Return what stands for a model in the cache; languages affect how texts are split, and the flags."""
    return direction.fingerprint, direction.source, direction.target


def _estimate(texts: Sequence[str]) -> int:
    """Return about the number of tokens of texts, without encoding them."""
    return sum(max(1, len(text.encode("utf-8", "replace")) // 4) for text in texts)
