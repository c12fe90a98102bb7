"""The application of the server: routes, cross-origin requests, host names, health and metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Match, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dragoman.errors import DragomanError
from dragoman.serve.admission import Clients
from dragoman.serve.database import DatabaseError
from dragoman.serve.deepl import deepl_routes
from dragoman.serve.directions import Directions
from dragoman.serve.gateway import Gateway, Monitor
from dragoman.serve.glossaries import GlossaryStore
from dragoman.serve.http import INTERNAL_ERROR, Limits, error_key
from dragoman.serve.keys import KeyStore
from dragoman.serve.libretranslate import routes
from dragoman.serve.page import page_routes
from dragoman.serve.suggestions import SuggestionFile
from dragoman.serve.uploads import DocumentJobs

_LOG = logging.getLogger(__name__)
_LOCAL = ["localhost", "127.0.0.1", "[::1]"]
_SAVE_SECONDS = 1.0
"""Seconds between two writes of the use of keys."""
_DROP_SECONDS = 10.0
"""Seconds between two deletions of documents whose time is over."""


class LazyApp:
    """An application that is created in a thread by its first request, because it loads a second copy of the models."""

    def __init__(self, create: Callable[[], ASGIApp]) -> None:
        self._create, self._lock = create, asyncio.Lock()
        self._app: ASGIApp | None = None
        self._version = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lock:
            app, version = self._app, self._version
            if app is None:
                try:
                    app = await asyncio.to_thread(self._create)
                except DragomanError as error:
                    await PlainTextResponse(str(error), 500)(scope, receive, send)
                    return
                if version == self._version:  # not reset meanwhile
                    self._app = app
        await app(scope, receive, send)

    def reset(self) -> None:
        """Create the application again for the next request."""
        self._app, self._version = None, self._version + 1


def create_server(
    directions: Directions,
    limits: Limits | None = None,
    hosts: Sequence[str] = ("*",),
    viewer: ASGIApp | None = None,
    database: Path | None = None,
    require_key: bool = False,
    suggestions: Path | None = None,
) -> Starlette:
    """Return the application; its `state.monitor` is the `Monitor` of its requests.

    hosts: accepted host names of requests, "*" for any; local names are always accepted.  viewer: application of the
    page that shows a translation while it is generated, at /viewer/; the page at / links to it.  database: file of the
    API keys, glossaries and documents, which several servers may share; without one, keys are not checked, and
    glossaries are kept until the server ends.  require_key: refuse requests without a key.  suggestions: file to which
    suggested translations are appended; None = they are refused.  Raises UsageError for an invalid database, and for
    suggestions that cannot be written.
    """
    limits, monitor = limits or Limits(), Monitor(directions)
    clients = Clients(KeyStore(database, create=False) if database else None, require_key)
    glossaries, jobs = GlossaryStore(database), DocumentJobs(database)
    suggested = None if suggestions is None else SuggestionFile(suggestions)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        directions.deliver_in(asyncio.get_running_loop())
        tasks = [
            asyncio.create_task(_regularly(_SAVE_SECONDS, partial(asyncio.to_thread, clients.save))),
            asyncio.create_task(_regularly(_DROP_SECONDS, jobs.drop_old)),
        ]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await jobs.close()
        await asyncio.to_thread(directions.close)
        clients.close()
        glossaries.close()

    all_routes = [
        *routes(directions, limits, clients, jobs, suggested),
        *deepl_routes(directions, limits, clients, glossaries, jobs),
        *_status_routes(monitor),
    ]
    pages = [*page_routes(limits, viewer is not None), *([] if viewer is None else [Mount("/viewer", viewer)])]
    middleware = [Middleware(Gateway, monitor=monitor, hosts=[*hosts, *_LOCAL], routes=all_routes)]
    handlers: dict[Any, Any] = dict.fromkeys((404, 405, 500), _error)
    app = Starlette(routes=[*all_routes, *pages], middleware=middleware, exception_handlers=handlers, lifespan=lifespan)
    app.state.monitor = monitor
    return app


def _status_routes(monitor: Monitor) -> list[Route]:
    async def live(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        busy = "stopping" if monitor.draining else "loading" if monitor.loading else ""
        return JSONResponse({"status": busy or "ok"}, 503 if busy else 200)

    async def metrics(request: Request) -> Response:
        text = await asyncio.to_thread(monitor.exposition)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def spec(request: Request) -> Response:
        from dragoman.serve.openapi import description  # an idle server does without its 0.4 MB

        return JSONResponse(description())

    return [Route("/livez", live), Route("/readyz", ready), Route("/metrics", metrics), Route("/spec", spec)]


async def _error(request: Request, exception: Exception) -> Response:
    status, detail = getattr(exception, "status_code", 500), getattr(exception, "detail", INTERNAL_ERROR)
    path = request.url.path
    headers = {"Allow": _allowed_methods(request)} if status == 405 else None
    return JSONResponse({error_key(path): f"{request.method} {path[:80]}: {detail}"}, status, headers)


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes with the path of a request, for RFC 9110, section 15.5.6."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted(set().union(*found)))


async def _regularly(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except DatabaseError as error:  # such as a full disk; the next call writes what was not written
            _LOG.error("the database cannot be written: %s", error)


async def to_viewer(request: Request) -> Response:
    """Redirect to the page of the viewer."""
    return RedirectResponse("viewer/")
