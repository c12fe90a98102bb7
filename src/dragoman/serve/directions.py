"""The translation directions of a server: models by language pair, and pivoting through a third language."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

from dragoman.decoding.service import Search
from dragoman.errors import UsageError
from dragoman.pipelines.translated import Translation
from dragoman.pipelines.translation import Translator
from dragoman.serve.admission import Admission, Ticket
from dragoman.serve.cache import TranslationCache, settings_key
from dragoman.serve.direction import BlockingTranslator, Direction
from dragoman.serve.model_memory import ModelMemory
from dragoman.serve.sentences import Report

__all__ = ["Directions"]

_THREADS = 32
"""Texts with markup and documents that are translated at the same time."""

Result = TypeVar("Result")


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
        self.sources: list[str] = []
        self.languages: list[str] = []
        """Source languages and all languages, in alphabetical order."""
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
        self.sources = sorted({source for source, _ in by_pair})
        self.languages = sorted({code for pair in by_pair for code in pair})
        for direction in by_pair.values():
            direction.observe = self._observer
            if direction.is_open:
                self.memory.loaded.setdefault(direction)
        for direction in gone:
            self.memory.retire(direction)
            self.cache.forget(_cached_as(direction))

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
        report: Report | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """Return the translations of each model of a route; the last list has the results.

        client: name of the caller; callers share the machine equally.  report: receives each sentence of the results
        (see `Direction.translate`).  settings: as for `Translator.translate`; the search of the first of two models
        returns one hypothesis and uses no glossary.  Raises Overloaded.
        """
        ticket = self.admission.accept(client, len(route) * _estimate(texts))
        try:
            found: list[list[Translation]] = []
            with _Pinned(self, route) as pinned:
                for position, direction in enumerate(pinned, start=1):
                    last = position == len(pinned)
                    own = settings if last else {**settings, "nbest": 1, "glossary": None}
                    async with self.memory.using(direction):
                        found.append(await self._translate(direction, texts, ticket, own, report if last else None))
                    texts = [translation.text for translation in found[-1]]
            return found
        finally:
            self.admission.finish(ticket)

    async def _translate(
        self,
        direction: Direction,
        texts: Sequence[str],
        ticket: Ticket,
        settings: dict[str, Any],
        report: Report | None,
    ) -> list[Translation]:
        """Return the translations of a loaded model, from the cache if they are there."""
        key = settings_key(direction.translator.settings, **settings) if self.cache.limit else None
        if key is None:
            return await direction.translate(texts, ticket, report, **settings)
        model = _cached_as(direction)
        found = [self.cache.get(model, key, text) for text in texts]
        missing = [i for i, translation in enumerate(found) if translation is None]
        if report is not None:
            for i, translation in enumerate(found):
                if translation is not None:
                    report(i, translation.text)
        of_missing = None if report is None else partial(_report_missing, report, missing)
        new = await direction.translate([texts[i] for i in missing], ticket, of_missing, **settings) if missing else []
        for i, translation in zip(missing, new, strict=True):
            self.cache.put(model, key, texts[i], translation)
            found[i] = translation
        return cast(list[Translation], found)

    def current(self, direction: Direction) -> Direction:
        """Return a model, or its successor if it was replaced.  Raises UsageError if there is none."""
        if not direction.retired:
            return direction
        current = self.by_pair.get((direction.source, direction.target))
        if current is None:
            raise UsageError(f"{direction.source} to {direction.target} is not translated any more")
        return current

    def check_room(self, characters: int) -> None:
        """Raise Overloaded if `run` would not accept a source of so many characters now."""
        self.admission.check(_tokens_of(characters))

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
        ticket = self.admission.accept(client, len(route) * _tokens_of(characters))
        try:
            with _Pinned(self, route) as pinned:
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


class _Pinned:
    """Keeps the models of a route while a request uses them, though others may replace them.

    Those that were replaced since the route was found give way to their successors.
    """

    __slots__ = ("_memory", "_pinned")

    def __init__(self, directions: Directions, route: Sequence[Direction]) -> None:
        self._memory, self._pinned = directions.memory, [directions.current(direction) for direction in route]

    def __enter__(self) -> list[Direction]:
        for direction in self._pinned:
            direction.pins += 1
        return self._pinned

    def __exit__(self, *_: object) -> None:
        for direction in self._pinned:
            self._memory.unpin(direction)


def _cached_as(direction: Direction) -> tuple[str, str, str]:
    """Return what stands for a model in the cache; languages affect how texts are split, and the flags."""
    return direction.fingerprint, direction.source, direction.target


def _tokens_of(characters: int) -> int:
    return max(1, characters // 4)


def _estimate(texts: Sequence[str]) -> int:
    """Return about the number of tokens of texts, without encoding them."""
    return sum(max(1, len(text.encode("utf-8", "replace")) // 4) for text in texts)


def _report_missing(report: Report, missing: Sequence[int], index: int, text: str) -> None:
    """Report a sentence of a text that was not in the cache.  index: of the text among those."""
    report(missing[index], text)
