"""The applications: the server with its routes, health, metrics and models, and the viewer alone."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Match, Route

from dragoman.decoding.loader import find_device
from dragoman.errors import UsageError
from dragoman.extras import has_torch, needs_torch
from dragoman.models.model_folder import distinct_names, read_config
from dragoman.serve.admission import Clients
from dragoman.serve.database import DatabaseError, GlossaryStore, KeyStore
from dragoman.serve.deepl import DeepL
from dragoman.serve.directions import Directions
from dragoman.serve.gateway import LOG, Gateway, Monitor
from dragoman.serve.glossaries import DEEPL_ERRORS
from dragoman.serve.http import INTERNAL_ERROR, Limits, answered, error_key
from dragoman.serve.libretranslate import LIBRETRANSLATE_ERRORS, LibreTranslate, SuggestionFile
from dragoman.serve.models import Direction, Slot, model_sources
from dragoman.serve.operations import TEXT, Operation, description, fields
from dragoman.serve.pages import Viewer, ViewerModel, translation_page
from dragoman.serve.settings import ServerConfig
from dragoman.serve.uploads import DocumentJobs
from dragoman.serve.uvicorn_server import Reloader, listen, run_server, viewer_models

_LOG = logging.getLogger(__name__)
_LOCAL = ["localhost", "127.0.0.1", "[::1]"]
_SAVE_SECONDS = 1.0
"""Seconds between two writes of the use of keys."""
_DROP_SECONDS = 10.0
"""Seconds between two deletions of expired documents."""


def load_models(paths: Sequence[str | Path], device: str = "cpu") -> dict[str, ViewerModel]:
    """Load models for `create_app`; their names are the last components of their paths, as few as make them distinct.

    Raises UsageError for no path, a repeated one and a model that generates no text, and ModelFolderError.
    """
    if not paths:
        raise UsageError("no models to serve; specify at least one")
    resolved = [Path(path).resolve() for path in paths]
    repeated = sorted({str(path) for path in resolved if resolved.count(path) > 1})
    if repeated:
        raise UsageError(f"models specified twice: {', '.join(repeated)}; specify each model once")
    names = distinct_names(resolved)
    models = {name: ViewerModel(name, path, device) for name, path in zip(names, paths, strict=True)}
    for model in models.values():
        model.open()
    return models


def create_app(models: Mapping[str, Slot]) -> Starlette:
    """Return the application of the viewer alone, for models by name.  Raises UsageError if there are none."""
    if not models:
        raise UsageError("no models to serve; specify at least one")
    return Starlette(routes=Viewer(Directions([]), models).routes(""), exception_handlers=_HANDLERS)


def create_server(
    directions: Directions,
    limits: Limits | None = None,
    hosts: Sequence[str] = ("*",),
    viewer: Viewer | None = None,
    database: Path | None = None,
    require_key: bool = False,
    suggestions: Path | None = None,
    origins: Sequence[str] = ("*",),
    metrics_key: bool = False,
) -> Starlette:
    """Return the application; its `state.monitor` is the `Monitor` of its requests.

    hosts: accepted host names of requests, "*" for any; local names are always accepted.  viewer: the page that shows
    translations while they are generated, at /viewer/; the page at / links to it.  Without directions, the viewer is
    served alone.  database: file of the API keys, glossaries and documents, which several servers may share; without
    one, keys are not checked, and glossaries are kept until the server ends.  require_key: refuse requests without a
    key.  suggestions: file to which suggested translations are appended; None = they are refused.  origins: of web
    pages that may use the server beside its own, "*" for any.  metrics_key: refuse requests for metrics without a key.
    Raises UsageError without directions and viewer, for an invalid database or suggestions that cannot be written.
    """
    if not directions.by_pair and viewer is None:
        raise UsageError("no models to serve; specify at least one translation model")
    limits, monitor = limits or Limits(), Monitor(directions)
    keys = KeyStore(database, create=False) if database else None
    clients = Clients(keys, require_key)
    glossaries, jobs = GlossaryStore(database), DocumentJobs(database)
    suggested = None if suggestions is None else SuggestionFile(suggestions)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        directions.deliver_in(asyncio.get_running_loop())
        tasks = [asyncio.create_task(_regularly(_DROP_SECONDS, jobs.drop_old))]
        if keys is not None:
            tasks.append(asyncio.create_task(_regularly(_SAVE_SECONDS, partial(asyncio.to_thread, keys.save))))
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await jobs.close()
        await asyncio.to_thread(directions.close)
        try:
            if keys is not None:
                keys.close()
        except DatabaseError as error:
            _LOG.error("the last use of keys was not written: %s", error)
        glossaries.close()

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        busy = "stopping" if monitor.draining else "loading" if monitor.loading else ""
        return JSONResponse({"status": busy or "ok"}, 503 if busy else 200)

    async def metrics(call: Any) -> Response:
        text = await asyncio.to_thread(generate_latest, monitor.registry)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def to_viewer(request: Request) -> Response:
        return RedirectResponse("viewer/")

    status = fields(status=TEXT)
    operations = [
        Operation("GET", "/livez", live, "Whether the process runs", status, key="none"),
        Operation("GET", "/readyz", ready, "Whether requests are accepted", status, key="none"),
        Operation("GET", "/metrics", metrics, "Metrics for Prometheus", key="always" if metrics_key else "optional"),
    ]
    pages = [Route("/", to_viewer)]
    if directions.by_pair:
        operations += LibreTranslate(directions, limits, clients, jobs, suggested).operations()
        operations += DeepL(directions, limits, clients, glossaries, jobs).operations()
        pages = translation_page(limits, viewer is not None)

    async def spec(request: Request) -> Response:
        clients.identify(request)
        return JSONResponse(description(operations))

    formats = {"error": LIBRETRANSLATE_ERRORS, "message": DEEPL_ERRORS}
    api_routes = [operation.route(formats[error_key(operation.path)], limits, clients) for operation in operations]
    api_routes.append(Route("/spec", answered(spec, LIBRETRANSLATE_ERRORS)))
    if viewer is not None:
        viewer.clients = clients
    viewer_routes = [] if viewer is None else viewer.routes("/viewer")
    middleware = [Middleware(Gateway, monitor=monitor, hosts=[*hosts, *_LOCAL], origins=origins, routes=api_routes)]
    routes = [*api_routes, *pages, *viewer_routes]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=_HANDLERS, lifespan=lifespan)
    app.state.monitor = monitor
    return app


async def _error(request: Request, exception: Exception) -> Response:
    status, detail = getattr(exception, "status_code", 500), getattr(exception, "detail", INTERNAL_ERROR)
    path = request.url.path
    headers = {}
    if status == 405:  # RFC 9110, section 15.5.6: name the methods of all routes with this path
        routes = [route for route in request.app.routes if isinstance(route, Route)]
        methods = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
        headers["Allow"] = ", ".join(sorted(set().union(*methods)))
    return JSONResponse({error_key(path): f"{request.method} {path[:80]}: {detail}"}, status, headers)


async def _regularly(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except DatabaseError as error:  # such as a full disk; the next call writes what was not written
            _LOG.error("the database cannot be written: %s", error)


_HANDLERS: dict[Any, Any] = dict.fromkeys((404, 405, 500), _error)


def start(config: ServerConfig, log: Callable[[str], None], read: Callable[[], ServerConfig] | None = None) -> None:
    """Serve models until the process is stopped.

    Translation models answer the clients of the server; the viewer shows language models, too.  read: returns the
    configuration, read again at SIGHUP.  Raises UsageError, ModelFolderError, and DragomanError if the address cannot
    be used.
    """
    check(config)
    find_device(config.device)
    with listen(config.host, config.port) as listener:
        address, bound_port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        started = f"http://{shown}:{bound_port}   (press Ctrl-C to stop)"
        if config.log_requests:
            LOG.addHandler(logging.StreamHandler(sys.stdout))
            LOG.setLevel(logging.INFO)
        app, reloader = create_application(config, log, read)
        run_server(app, app.state.monitor, listener, config.drain, reloader, lambda: log(started))


def check(config: ServerConfig) -> None:
    """Raise UsageError or ModelFolderError for models that cannot be served, and for an invalid database."""
    sources = model_sources(config.models, config.device)
    if not config.viewer:
        if others := [str(entry.path) for entry in config.models if not read_config(entry.path).data.translates]:
            raise UsageError(
                f"{', '.join(others)}: language models are served by the viewer only; remove --no-viewer (in a "
                "configuration, viewer = false), or serve translation models only"
            )
        if not sources:
            raise UsageError("no models to serve; specify at least one translation model")
    if config.database:
        KeyStore(Path(config.database), create=False).close()


def create_application(
    config: ServerConfig, log: Callable[[str], None], read: Callable[[], ServerConfig] | None = None
) -> tuple[Starlette, Reloader]:
    """Return the application, and what loads its models.

    read: see `start`.  Raises UsageError and ModelFolderError.
    """
    sources = model_sources(config.models, config.device)
    models = [Direction(source, source.name) for source in sources]
    directions = Directions(models, config.limits.waiting_tokens, config.memory << 20, config.cache << 20)
    for unused, used in directions.unused:
        log(f"{unused.name}: only in the viewer, because {used.name} translates the same languages")
    viewer = None
    if config.viewer and sources and not has_torch():
        log("without the viewer, which needs PyTorch: pip install 'dragoman[train]' (or --no-viewer)")
    elif config.viewer:
        if not sources:
            with needs_torch("serving a language model"):
                import torch  # noqa: F401
        viewer = Viewer(directions, viewer_models(config, directions), config.limits)
    is_local = all(ip_address(address[0]).is_loopback for *_, address in socket.getaddrinfo(config.host, None))
    app = create_server(
        directions, config.limits, config.allowed_hosts or [config.host if is_local else "*"], viewer,
        Path(config.database) if config.database else None, config.require_key,
        Path(config.suggestions) if config.suggestions else None,
        config.allowed_origins or ([] if is_local else ["*"]), config.metrics_key,
    )  # fmt: skip
    return app, Reloader(directions, config, read or (lambda: config), log, viewer)
