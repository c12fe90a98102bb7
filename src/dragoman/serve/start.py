"""Starting a server: the models of its configuration, the application and the address."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from dragoman.config.server import ServerConfig
from dragoman.decoding.loader import find_device
from dragoman.errors import UsageError
from dragoman.extras import has_torch, needs_torch
from dragoman.models.model_folder import read_config
from dragoman.serve.app import LazyApp, create_server, to_viewer
from dragoman.serve.directions import Directions
from dragoman.serve.gateway import LOG
from dragoman.serve.http import Limits
from dragoman.serve.keys import KeyStore
from dragoman.serve.model_source import ModelSource, model_sources
from dragoman.serve.models import Direction
from dragoman.serve.reloader import Reloader
from dragoman.serve.uvicorn_server import listen, run_server

_LOCAL = {"127.0.0.1", "localhost", "::1"}


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
        if reloader is None:
            log(started)
            run_server(app, None, listener, config.drain)
        else:
            run_server(app, app.state.monitor, listener, config.drain, reloader, lambda: log(started))


def check(config: ServerConfig) -> None:
    """Raise UsageError or ModelFolderError for models that cannot be served, and for an invalid database."""
    sources = model_sources(config.models, config.device)
    if not config.viewer:
        if others := [str(entry.path) for entry in config.models if read_config(entry.path).data.kind == "text"]:
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
) -> tuple[Starlette, Reloader | None]:
    """Return the application, and what loads its models; only the viewer has none.

    read: see `start`.  Raises UsageError and ModelFolderError.
    """
    sources = model_sources(config.models, config.device)
    page = _Viewer(config) if _with_viewer(config, sources, log) else None
    if not sources and page:
        with needs_torch("serving a language model"):
            viewer = _viewer(config)  # loads the models now, so that damaged ones are refused at the start
        return Starlette(routes=[Mount("/viewer", viewer), Route("/", to_viewer)]), None
    directions = _directions(config, sources, log)
    app = _server(config, directions, page.app if page else None)
    replaced = page.replace if page else (lambda config: None)
    return app, Reloader(directions, config, read or (lambda: config), log, replaced)


def _with_viewer(config: ServerConfig, sources: Sequence[ModelSource], log: Callable[[str], None]) -> bool:
    if config.viewer and sources and not has_torch():
        log("without the viewer, which needs PyTorch: pip install 'dragoman[train]' (or --no-viewer)")
        return False
    return config.viewer


def _directions(config: ServerConfig, sources: Sequence[ModelSource], log: Callable[[str], None]) -> Directions:
    found = [Direction(source, source.name) for source in sources]
    directions = Directions(found, config.limits.waiting_tokens, config.memory << 20, config.cache << 20)
    for unused, used in directions.unused:
        log(f"{unused.name}: only in the viewer, because {used.name} translates the same languages")
    return directions


def _server(config: ServerConfig, directions: Directions, viewer: ASGIApp | None) -> Starlette:
    limits = config.limits
    return create_server(
        directions,
        Limits(limits.characters, limits.texts, limits.body, limits.read_seconds, limits.seconds),
        config.allowed_hosts or (() if config.host in _LOCAL else ("*",)),
        viewer,
        Path(config.database) if config.database else None,
        config.require_key,
        Path(config.suggestions) if config.suggestions else None,
    )


class _Viewer:
    """The viewer of the models of a configuration, which another one may replace."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.app = LazyApp(lambda: _viewer(self._config))

    def replace(self, config: ServerConfig) -> None:
        """Show the models of this configuration from the next request on."""
        self._config = self._config.model_copy(update={"models": config.models})
        self.app.reset()


def _viewer(config: ServerConfig) -> ASGIApp:
    from dragoman.device import resolve_device  # these import torch, which the server does not need
    from dragoman.serve.viewer import create_app, load_models

    # An entry per direction of a model with several languages is one model of the viewer.
    paths = list({Path(entry.path).resolve(): Path(entry.path) for entry in config.models}.values())
    return create_app(load_models(paths, resolve_device(config.device)))
