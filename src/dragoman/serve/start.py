"""Starting a server: the models of its configuration, the application and the address."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette

from dragoman.config.server import ServerConfig
from dragoman.decoding.loader import find_device
from dragoman.errors import UsageError
from dragoman.extras import has_torch, needs_torch
from dragoman.models.model_folder import read_config
from dragoman.serve.app import create_server
from dragoman.serve.directions import Directions
from dragoman.serve.gateway import LOG
from dragoman.serve.http import Limits
from dragoman.serve.keys import KeyStore
from dragoman.serve.model_source import ModelSource, model_sources
from dragoman.serve.models import Direction
from dragoman.serve.reloader import Reloader, viewer_models
from dragoman.serve.uvicorn_server import listen, run_server
from dragoman.serve.viewer_routes import Viewer

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
) -> tuple[Starlette, Reloader]:
    """Return the application, and what loads its models.

    read: see `start`.  Raises UsageError and ModelFolderError.
    """
    sources = model_sources(config.models, config.device)
    directions = _directions(config, sources, log)
    viewer = None
    if config.viewer and sources and not has_torch():
        log("without the viewer, which needs PyTorch: pip install 'dragoman[train]' (or --no-viewer)")
    elif config.viewer:
        if not sources:
            with needs_torch("serving a language model"):
                import torch  # noqa: F401
        viewer = Viewer(directions, viewer_models(config, directions), _limits(config))
    app = create_server(
        directions,
        _limits(config),
        config.allowed_hosts or (() if config.host in _LOCAL else ("*",)),
        viewer,
        Path(config.database) if config.database else None,
        config.require_key,
        Path(config.suggestions) if config.suggestions else None,
    )
    return app, Reloader(directions, config, read or (lambda: config), log, viewer)


def _directions(config: ServerConfig, sources: Sequence[ModelSource], log: Callable[[str], None]) -> Directions:
    models = [Direction(source, source.name) for source in sources]
    directions = Directions(models, config.limits.waiting_tokens, config.memory << 20, config.cache << 20)
    for unused, used in directions.unused:
        log(f"{unused.name}: only in the viewer, because {used.name} translates the same languages")
    return directions


def _limits(config: ServerConfig) -> Limits:
    limits = config.limits
    return Limits(limits.characters, limits.texts, limits.body, limits.read_seconds, limits.seconds)
