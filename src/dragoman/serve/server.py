"""The server: routes, cross-origin requests, host names, health, metrics, start and stop."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.decoding.service import Search
from dragoman.serve.answers import INTERNAL_ERROR
from dragoman.serve.deepl import deepl_routes
from dragoman.serve.directions import Directions
from dragoman.serve.files import DocumentJobs
from dragoman.serve.glossaries import GlossaryStore
from dragoman.serve.libretranslate import routes
from dragoman.serve.page import page_routes
from dragoman.serve.requests import Limits

__all__ = ["LazyApp", "create_server", "run_server", "to_viewer"]

_LOCAL = ["localhost", "127.0.0.1", "[::1]"]
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_IDLE_SECONDS = 30
"""Seconds after which a connection without a request is closed."""


class _Metrics:
    """Prometheus metrics; labels never hold anything of a client."""

    def __init__(self, directions: Directions) -> None:
        self.registry = CollectorRegistry()
        named: dict[str, Any] = {"registry": self.registry, "namespace": "dragoman"}
        self.requests = Counter("requests", "Requests", ["route", "status"], **named)
        self.seconds = Histogram("request_seconds", "Time to the answer", ["route"], buckets=_BUCKETS, **named)
        queued = Histogram("queue_seconds", "Time that searches waited for free rows", buckets=_BUCKETS, **named)
        computed = Histogram("search_seconds", "Time of searches without waiting", buckets=_BUCKETS, **named)
        rows = Histogram("batch_rows", "Hypotheses decoded together, at the end of a search", buckets=_ROWS, **named)
        waiting = Gauge("waiting_sentences", "Sentences that wait for free rows", **named)
        active = Gauge("active_rows", "Hypotheses that are being decoded", **named)
        tokens = Gauge("accepted_tokens", "Estimated source tokens of the requests in progress", **named)
        waiting.set_function(lambda: directions.load()[0])
        active.set_function(lambda: directions.load()[1])
        tokens.set_function(lambda: directions.admission.tokens)

        def observe(search: Search) -> None:
            queued.observe(search.queued)
            computed.observe(search.computed)
            rows.observe(search.rows)

        directions.observe(observe)


class _Measured:
    """Counts requests and measures their time."""

    def __init__(self, app: ASGIApp, metrics: _Metrics, paths: Sequence[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.monotonic(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(route, status).inc()
            self.metrics.seconds.labels(route).observe(time.monotonic() - begun)


class LazyApp:
    """An application that is created in a thread by its first request, because it loads a second copy of the models."""

    def __init__(self, create: Callable[[], ASGIApp]) -> None:
        self._create, self._lock = create, asyncio.Lock()
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lock:
            if self._app is None:
                self._app = await asyncio.to_thread(self._create)
            app = self._app
        await app(scope, receive, send)


def create_server(
    directions: Directions, limits: Limits | None = None, hosts: Sequence[str] = ("*",), viewer: ASGIApp | None = None
) -> Starlette:
    """Return the application.

    hosts: accepted host names of requests, "*" for any; local names are always accepted.  viewer: application of the
    page that shows a translation while it is generated, at /viewer/; the page at / links to it.
    """
    metrics, limits, glossaries, jobs = _Metrics(directions), limits or Limits(), GlossaryStore(), DocumentJobs()

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def show_metrics(request: Request) -> Response:
        text = await asyncio.to_thread(generate_latest, metrics.registry)
        return Response(text, media_type="text/plain; version=0.0.4")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        jobs.close()
        await asyncio.to_thread(directions.close)
        glossaries.close()

    async def error(request: Request, exception: Exception) -> Response:
        status, detail = getattr(exception, "status_code", 500), getattr(exception, "detail", INTERNAL_ERROR)
        key = "message" if request.url.path.startswith("/v2/") else "error"
        return JSONResponse({key: f"{request.method} {request.url.path[:80]}: {detail}"}, status)

    all_routes = [
        *routes(directions, limits, jobs),
        *deepl_routes(directions, limits, glossaries, jobs),
        Route("/livez", live),
        Route("/readyz", live),
        Route("/metrics", show_metrics),
    ]
    pages = [*page_routes(limits, viewer is not None), *([] if viewer is None else [Mount("/viewer", viewer)])]
    middleware = [
        Middleware(_Measured, metrics=metrics, paths=[route.path for route in all_routes]),
        Middleware(TrustedHostMiddleware, allowed_hosts=[*hosts, *_LOCAL], www_redirect=False),
        Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"]),
    ]
    handlers: dict[Any, Any] = {404: error, 405: error, 500: error}
    return Starlette(
        routes=[*all_routes, *pages], middleware=middleware, exception_handlers=handlers, lifespan=lifespan
    )


async def to_viewer(request: Request) -> Response:
    """Redirect to the page of the viewer."""
    return RedirectResponse("viewer/")


def run_server(app: Starlette, listener: socket.socket, drain_seconds: int = 30) -> None:
    """Serve until SIGTERM or Ctrl-C; then refuse new connections and finish the requests within `drain_seconds`."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=drain_seconds,
    )
    gc.freeze()  # models and modules live as long as the process
    gc.set_threshold(20_000, 20, 100)
    with suppress(KeyboardInterrupt), listener:
        uvicorn.Server(config).run(sockets=[listener])
