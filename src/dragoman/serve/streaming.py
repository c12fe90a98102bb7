"""Answers as server-sent events: each sentence as soon as it is translated, and then the whole answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman.data.sentences import JoinedParts
from dragoman.decoding.search_types import SearchSettings
from dragoman.pipelines.glossary import Glossary
from dragoman.pipelines.lines import SplitLine, Translation
from dragoman.pipelines.translation import Translator
from dragoman.serve.http import Disconnected, ErrorFormat, unless_disconnected

Report = Callable[[int, str], None]
"""Called with the index of a text and the next piece of its translation; the pieces joined are the translation."""

Run = Callable[[Generator[Any, Any, Any], int], Awaitable[Any]]
"""Returns the result of a generator of searches; the number counts the source tokens of the request before them."""

_BURST = 50
"""Searches that are submitted before other requests get a turn on the event loop."""


async def translate_sentences(
    translator: Translator, texts: Sequence[str], run: Run, report: Report, *, in_thread: bool,
    split: bool | None = None, glossary: Glossary | None = None, protect: Sequence[str] = (), **overrides: Any,
) -> list[Translation]:  # fmt: skip
    """Return what `Translator.translate` returns, and report each sentence as soon as those before it are translated.

    Each part of a text (a sentence, or a part of a long one) is a search of its own.  in_thread: split the texts in a
    thread, because they are long.  Cancelling the call cancels its searches.
    """
    settings = SearchSettings.of(translator.settings, **overrides)

    def split_all() -> list[SplitLine]:
        return [translator.split(text, sentences=split, protect=protect) for text in texts]

    async def write(index: int, line: SplitLine) -> Translation:
        """Join the translations of the parts of a text, in order, and report what each of them adds."""
        reported, joined = 0, JoinedParts(line.keep_space)
        start = line.text[: len(line.text) - len(line.text.lstrip())] if line.keep_space else ""
        for part in line.parts:
            if part.ids:
                await searches[id(part)]
            joined.append(part.text, translator.text_of(part))
            text = start + joined.text
            if joined.text and len(text) > reported:
                report(index, text[reported:])
                reported = len(text)
        translation = translator.join(line, settings.nbest)
        if len(translation.text) > reported:
            report(index, translation.text[reported:])
        return translation

    lines = await asyncio.to_thread(split_all) if in_thread else split_all()
    searches: dict[int, asyncio.Task[None]] = {}
    writers: list[asyncio.Task[Translation]] = []
    before = 0
    try:
        for index, line in enumerate(lines):
            for part in line.searched:
                steps = translator.part_searches([part], settings, Glossary.of(glossary), line.protect)
                searches[id(part)] = asyncio.ensure_future(run(steps, before))
                before += len(part.ids)
                if len(searches) % _BURST == 0:
                    await asyncio.sleep(0)
            writers.append(asyncio.create_task(write(index, line)))
        return await asyncio.gather(*writers)
    finally:
        unfinished = [task for task in (*searches.values(), *writers) if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, *searches.values(), return_exceptions=True)


_QUIET_SECONDS = 15.0
"""Seconds after which a comment keeps a connection open on which nothing else is sent."""

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Neither caches nor nginx hold events back."""

_KEEP_ALIVE = b": translating\n\n"


async def event_stream(
    request: Request, work: Callable[[Report], Awaitable[dict[str, Any]]], seconds: float, errors: ErrorFormat
) -> Response:
    """Return an answer whose events are what `work` reports (`part`) and its result (`done`).

    work: cancelled if the client disconnects, and after `seconds`.  Waits for the first event, 15 s at most.
    """
    events = _events(request, work, seconds)
    return await answer_in_pieces(request, events, errors, partial(_event, "error"), "text/event-stream", _HEADERS)


async def answer_in_pieces(
    request: Request,
    pieces: AsyncGenerator[bytes],
    errors: ErrorFormat,
    failed: Callable[[dict[str, Any]], bytes],
    media_type: str,
    headers: Mapping[str, str],
) -> Response:
    """Return an answer that is sent piece by piece.

    Waits for the first piece, and raises the exceptions of `pieces` until then; for a later one, `failed` returns the
    last piece from the JSON of its answer and `status`.
    """
    first = await anext(pieces)

    async def body() -> AsyncIterator[bytes]:
        yield first
        try:
            async for piece in pieces:
                yield piece
        except Disconnected:
            return
        except Exception as error:
            answer = errors.answer_to(error, request)
            yield failed(json.loads(bytes(answer.body)) | {"status": answer.status_code})
        finally:
            await pieces.aclose()

    return StreamingResponse(body(), media_type=media_type, headers=headers)


async def _events(
    request: Request, work: Callable[[Report], Awaitable[dict[str, Any]]], seconds: float
) -> AsyncGenerator[bytes]:
    """Yield events and comments.  Raises what `unless_disconnected` raises."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def report(index: int, text: str) -> None:
        queue.put_nowait(_event("part", {"index": index, "text": text}))

    async def run() -> None:
        try:
            answer = await unless_disconnected(request, work(report), seconds)
            queue.put_nowait(_event("done", answer))
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while True:
            try:
                event = await asyncio.wait_for(queue.get(), _QUIET_SECONDS)
            except TimeoutError:
                event = _KEEP_ALIVE
            if event is None:
                break
            yield event
        await task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
