"""The command `serve`: the translation server and the viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Device
from dragoman.cli.streams import log
from dragoman.errors import UsageError

_PACKAGES = {"babel", "fastapi", "prometheus_client", "starlette", "uvicorn"}


def serve(
    models: Annotated[list[Path], typer.Argument(help="Run folders or model folders.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 allows other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free one.")] = 8000,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Host name that requests may use; can be repeated. Default: any, unless --host is local."),
    ] = None,
    viewer: Annotated[bool, typer.Option(help="Serve the page that shows how a translation is generated.")] = True,
    device: Device = "cpu",
) -> None:
    """Serve a page that translates, LibreTranslate and DeepL clients, and a page that shows each step."""
    try:
        from dragoman.serve.start import start
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
            raise
        raise UsageError(
            f"the server needs {error.name}, which is not installed; install it with: pip install 'dragoman[serve]'"
        ) from None
    start(models, host, port, allowed_host, viewer, device, log)
