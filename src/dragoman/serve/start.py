"""Start of a server: what is served, on which address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from dragoman.errors import UsageError
from dragoman.extras import has_torch
from dragoman.models.model_folder import distinct_names, read_config, wrong_model
from dragoman.serve.directions import Direction, Directions
from dragoman.serve.listen import listen
from dragoman.serve.server import LazyApp, create_server, run_server, to_viewer

__all__ = ["start"]

_LOCAL = {"127.0.0.1", "localhost", "::1"}


def start(
    models: Sequence[Path],
    host: str,
    port: int,
    allowed_hosts: Sequence[str] | None,
    with_viewer: bool,
    device: str,
    log: Callable[[str], None],
) -> None:
    """Serve models until the process is stopped.

    Translation models answer the clients of the server; the viewer shows language models, too.  Raises UsageError,
    ModelFolderError, and DragomanError if the address cannot be used.
    """
    paths = [Path(path).resolve() for path in models]
    repeated = sorted({str(path) for path in paths if paths.count(path) > 1})
    if repeated:
        raise UsageError(f"models specified twice: {', '.join(repeated)}; specify each model once")
    named = list(zip(distinct_names(paths), models, strict=True))
    translators = []
    for name, path in named:
        config = read_config(path)
        if config.data.kind == "parallel":
            translators.append((name, path))
        elif config.data.kind != "text":
            raise wrong_model(path, config, "neither translates nor continues texts")
    if not translators and not with_viewer:
        raise UsageError("--no-viewer: none of the models translates, so there is nothing to serve; omit --no-viewer")

    def viewer() -> ASGIApp:
        from dragoman.device import resolve_device  # these import torch, which the server does not need
        from dragoman.serve.app import create_app, load_models

        return create_app(load_models(models, resolve_device(device)))

    with listen(host, port) as listener:
        if with_viewer and not has_torch() and translators:
            log("without the viewer, which needs PyTorch: pip install 'dragoman[train]' (or --no-viewer)")
            with_viewer = False
        page = LazyApp(viewer) if with_viewer else None
        if translators:
            directions = Directions([Direction.load(path, name) for name, path in translators])
            for unused, used in directions.unused:
                log(f"{unused.name}: only in the viewer, because {used.name} translates the same languages")
            local = host in _LOCAL
            hosts = allowed_hosts or (() if local else ("*",))
            app = create_server(directions, hosts=hosts, viewer=page)
        else:
            app = Starlette(routes=[Mount("/viewer", page), Route("/", to_viewer)])
        address, bound_port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        log(f"http://{shown}:{bound_port}   (press Ctrl-C to stop)")
        run_server(app, listener)
