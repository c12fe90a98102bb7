"""A model of a server: its translator with the service that runs the searches of all requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

from dragoman.decoding.loader import open_service
from dragoman.decoding.service import Search, SearchService
from dragoman.errors import DragomanError, UsageError
from dragoman.pipelines.glossary import Glossary
from dragoman.pipelines.translated import SearchCall, Translation
from dragoman.pipelines.translation import Translator
from dragoman.serve.admission import Ticket
from dragoman.serve.model_memory import Slot
from dragoman.serve.model_source import ModelSource
from dragoman.serve.sentences import Report, translate_sentences

__all__ = ["BlockingTranslator", "Direction"]

_SPLIT_HERE = 4000
"""Characters up to which a text is split and encoded on the event loop; longer ones would delay other requests."""

_SEARCHED_HERE = 100
"""Terms of a glossary up to which they are looked for on the event loop."""


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
            and (own.folder, own.languages, own.between, own.search)
            == (model.folder, model.languages, model.between, model.search)
            and self.fingerprint == model.fingerprint
        )

    async def translate(
        self, texts: Sequence[str], ticket: Ticket, report: Report | None = None, **settings: Any
    ) -> list[Translation]:
        """Return one translation per text, equal to that of `Translator.translate` without tokens and flags.

        report: receives each sentence as soon as those before it are translated (see `translate_sentences`).
        Cancelling the call cancels its searches.  Raises UsageError, and DragomanError if a search fails.
        """
        glossary = Glossary.of(settings.get("glossary"))
        many = glossary is not None and len(glossary.entries) > _SEARCHED_HERE
        long = many or sum(map(len, texts)) > _SPLIT_HERE
        if many and glossary is not None:
            await asyncio.to_thread(glossary.entries_in, "")  # compiles its expression, once
        if report is None:
            searches = self.translator.searches(texts, details=False, **settings)
            found: list[Translation] = await self._run(searches, ticket, long)
            return found

        def run(searches: Any, before: int) -> Any:
            return self._run(searches, replace(ticket, before=before), many)

        return await translate_sentences(self.translator, texts, run, report, in_thread=long, **settings)

    async def _run(self, searches: Any, ticket: Ticket, in_thread: bool = False) -> Any:
        """Return the result of a generator of searches.  in_thread: run the code between them in a thread."""
        found = None
        while True:
            call = await asyncio.to_thread(_send, searches, found) if in_thread else _send(searches, found)
            if not isinstance(call, SearchCall):
                return call
            search = self.submit(call, ticket)
            try:
                await _done(search)
            except asyncio.CancelledError:
                self.service.cancel(search)
                raise
            found = search.future.result()
            self.observe(search)

    def submit(self, call: SearchCall, ticket: Ticket) -> Search:
        """Queue the sentences of a call, ranked by the ticket of their request."""
        ranks = ticket.ranks(call.sources)
        self.service.total_rate = ticket.admission.total_rate
        return self.service.submit(call.sources, call.prefixes, call.settings, ranks, call.phrases)


async def _done(search: Search) -> None:
    """Wait for the end of a search."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    waiter = loop.create_future()

    def wake() -> None:
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
