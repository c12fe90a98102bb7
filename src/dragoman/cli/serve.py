"""The command `serve`: the web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Device
from dragoman.cli.streams import log
from dragoman.errors import UsageError

_PACKAGES = {"fastapi", "starlette", "uvicorn"}


def serve(
    models: Annotated[list[Path], typer.Argument(help="Run folders or model folders; several can be compared.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free one.")] = 8000,
    device: Device = "cpu",
) -> None:
    """Serve a web page for interactive translation."""
    try:
        from dragoman.serve.app import create_app, listen, load_models, run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
            raise
        raise UsageError(
            f"the web page needs {error.name}, which is not installed; install it with: pip install 'dragoman[serve]'"
        ) from None
    from dragoman.device import resolve_device

    with listen(host, port) as socket:
        page = create_app(load_models(models, resolve_device(device)))
        address, bound_port = socket.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        log(f"http://{shown}:{bound_port}   (press Ctrl-C to stop)")
        run(page, socket)
