"""Answers as server-sent events: pieces of translations while the rest is still searched, and then the whole answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from dragoman.serve.answers import ErrorFormat
from dragoman.serve.requests import BadRequest, Disconnected, header, unless_disconnected
from dragoman.serve.sentences import Report

__all__ = ["event_stream", "wants_events"]

_QUIET_SECONDS = 15.0
"""Seconds after which a comment keeps a connection open on which nothing else is sent."""

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Neither caches nor nginx hold events back."""

_KEEP_ALIVE = b": translating\n\n"


def wants_events(request: Request, stream: Any) -> bool:
    """Return whether a request asks for events: by the parameter `stream`, or by its header `Accept`.

    Raises BadRequest.
    """
    if stream is None:
        accepted = header(request, b"accept").split(",")
        return any(kind.partition(";")[0].strip().lower() == "text/event-stream" for kind in accepted)
    if str(stream).lower() in ("true", "1"):
        return True
    if str(stream).lower() in ("false", "0", ""):
        return False
    raise BadRequest("Invalid request: 'stream' parameter must be true or false")


async def event_stream(
    request: Request, work: Callable[[Report], Awaitable[dict[str, Any]]], seconds: float, errors: ErrorFormat
) -> Response:
    """Return an answer whose events are what `work` reports (`part`) and its result (`done`).

    work: cancelled if the client disconnects, and after `seconds`.  Waits for the first event, 15 s at most, and raises
    the exceptions of `work` until then; later ones are an event `error`.
    """
    events = _events(request, work, seconds)
    first = await anext(events)

    async def body() -> AsyncIterator[bytes]:
        yield first
        try:
            async for event in events:
                yield event
        except Disconnected:
            return  # nobody reads on
        except Exception as error:
            answer = errors.answer_to(error, request)
            yield _event("error", json.loads(bytes(answer.body)) | {"status": answer.status_code})
        finally:
            await events.aclose()

    return StreamingResponse(body(), media_type="text/event-stream", headers=_HEADERS)


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
