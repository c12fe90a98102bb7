"""A server in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import uvicorn
from starlette.applications import Starlette

from dragoman.decoding.loader import open_service
from dragoman.pipelines.translation import Translator
from dragoman.serve.models import Direction
from dragoman.serve.uvicorn_server import listen, server_config
from tiny_translator import copying_translator


def copying_direction(source: str = "en", target: str = "de", **settings: int) -> Direction:
    """A direction whose translations are their sources."""
    return direction_of(copying_translator(60, **settings), source, target)


def direction_of(translator: Translator, source: str, target: str) -> Direction:
    translator.describe_data(None, (source, target))
    return Direction(translator, f"{source}-{target}", open_service(translator.backend, translator.max_source))


def of_sentences(direction: Direction) -> Direction:
    """A direction with a model that was trained on single sentences, so that texts are split into sentences."""
    profile: Any = SimpleNamespace(single_sentences=True, translates_wordless=False, length_ratio=None)
    direction.translator.describe_data(profile, (direction.source, direction.target))
    return direction


def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.01)


@contextmanager
def serving(app: Starlette, server: uvicorn.Server | None = None) -> Iterator[str]:
    """Serve on a free port and give the address, without a slash at its end."""
    with listen("127.0.0.1", 0) as listener:
        server = server or uvicorn.Server(server_config(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
