"""The command `serve`: the web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.options import Device, app
from dragoman.errors import UsageError

__all__ = ["serve"]

_NEEDED = {"fastapi", "starlette", "uvicorn", "jinja2"}


@app.command()
def serve(
    models: Annotated[list[Path], typer.Argument(help="Run folders or model folders; several can be compared.")],
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = any that is free.")] = 8000,
    device: Device = "cpu",
) -> None:
    """A web page: type a sentence, watch it being translated, see where each word came from."""
    try:
        from dragoman.serve.app import create_app, listen, load_models, run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        raise UsageError(
            f"the web page needs {error.name}, which is not installed; install it with: pip install 'dragoman[serve]'"
        ) from None
    from dragoman.device import resolve_device

    door = listen(host, port)
    with door:
        page = create_app(load_models(models, resolve_device(device)))
        address, number = door.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        typer.echo(f"http://{shown}:{number}   (Ctrl-C ends it)", err=True)
        run(page, door)
