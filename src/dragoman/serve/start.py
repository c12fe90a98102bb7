"""Starting a server: the models of its configuration, the application and the address."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from dragoman.config.server import ModelEntry, ServerConfig
from dragoman.errors import UsageError
from dragoman.extras import has_torch
from dragoman.models.model_folder import distinct_names, read_config, wrong_model
from dragoman.serve.directions import Direction, Directions
from dragoman.serve.keys import KeyStore
from dragoman.serve.listen import listen
from dragoman.serve.monitor import LOG, Monitor
from dragoman.serve.requests import Limits
from dragoman.serve.run import run_server
from dragoman.serve.server import LazyApp, create_server, to_viewer

__all__ = ["check", "create_application", "start"]

_LOCAL = {"127.0.0.1", "localhost", "::1"}


def start(config: ServerConfig, log: Callable[[str], None]) -> None:
    """Serve models until the process is stopped.

    Translation models answer the clients of the server; the viewer shows language models, too.  Raises UsageError,
    ModelFolderError, and DragomanError if the address cannot be used.
    """
    check(config)
    with listen(config.host, config.port) as listener:
        app, monitor = create_application(config, log)
        if config.log_requests:
            LOG.addHandler(logging.StreamHandler(sys.stdout))
            LOG.setLevel(logging.INFO)
        address, bound_port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        log(f"http://{shown}:{bound_port}   (press Ctrl-C to stop)")
        run_server(app, monitor, listener, config.drain)


def check(config: ServerConfig) -> None:
    """Raise UsageError or ModelFolderError for models that cannot be served, and for an invalid database."""
    if not _translators(config) and not config.viewer:
        raise UsageError("none of the models translates, so there is nothing to serve without the viewer")
    if config.database:
        KeyStore(Path(config.database), create=False).close()


def create_application(config: ServerConfig, log: Callable[[str], None]) -> tuple[Starlette, Monitor | None]:
    """Return the application with the monitor of its requests; only the viewer has none.

    Raises UsageError and ModelFolderError.
    """
    translators = _translators(config)
    with_viewer = config.viewer
    if with_viewer and translators and not has_torch():
        log("without the viewer, which needs PyTorch: pip install 'dragoman[train]' (or --no-viewer)")
        with_viewer = False
    page = LazyApp(lambda: _viewer(config)) if with_viewer else None
    if translators:
        app = _server(config, translators, page, log)
        return app, app.state.monitor
    return Starlette(routes=[Mount("/viewer", page), Route("/", to_viewer)]), None


def _translators(config: ServerConfig) -> list[tuple[str, ModelEntry]]:
    """Return the models that translate, with the names of their folders."""
    paths = [Path(entry.path).resolve() for entry in config.models]
    repeated = sorted({str(path) for path in paths if paths.count(path) > 1})
    if repeated:
        raise UsageError(f"models specified twice: {', '.join(repeated)}; specify each model once")
    found = []
    for name, entry in zip(distinct_names(paths), config.models, strict=True):
        model = read_config(Path(entry.path))
        if model.data.kind == "parallel":
            found.append((name, entry))
        elif model.data.kind != "text":
            raise wrong_model(Path(entry.path), model, "neither translates nor continues texts")
    return found


def _server(
    config: ServerConfig, models: Sequence[tuple[str, ModelEntry]], viewer: ASGIApp | None, log: Callable[[str], None]
) -> Starlette:
    limits = config.limits
    loaded = (Direction.load(Path(entry.path), name, entry.source, entry.target) for name, entry in models)
    directions = Directions(loaded, limits.waiting_tokens)
    for unused, used in directions.unused:
        log(f"{unused.name}: only in the viewer, because {used.name} translates the same languages")
    return create_server(
        directions,
        Limits(limits.characters, limits.texts, limits.body, limits.read_seconds, limits.seconds),
        config.allowed_hosts or (() if config.host in _LOCAL else ("*",)),
        viewer,
        Path(config.database) if config.database else None,
        config.require_key,
    )


def _viewer(config: ServerConfig) -> ASGIApp:
    from dragoman.device import resolve_device  # these import torch, which the server does not need
    from dragoman.serve.app import create_app, load_models

    return create_app(load_models([Path(entry.path) for entry in config.models], resolve_device(config.device)))
