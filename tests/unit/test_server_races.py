"""Races of the server: a model that is being loaded, and clients that do not read."""

from __future__ import annotations

import asyncio
import socket
import threading

import httpx2 as httpx
import pytest

from dragoman.errors import UsageError
from dragoman.pipelines.glossary import Glossary
from dragoman.serve import uvicorn_server
from dragoman.serve.app import create_server
from dragoman.serve.directions import Directions
from dragoman.serve.models import ModelMemory, Slot
from running_server import copying_direction, serving, until


class SlowSlot(Slot):
    """A model that is open before its size is known, as `Direction` is, and is larger than the limit."""

    name, bytes, size_known, is_open = "slow", 0, False, False  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.proceed = threading.Event()

    def open(self) -> None:
        self.is_open = True  # type: ignore[misc]
        self.proceed.wait(300)
        self.bytes, self.size_known = 100, True  # type: ignore[misc]

    def deliver_in(self, loop: asyncio.AbstractEventLoop) -> None:
        raise AssertionError("too large")

    def close(self) -> None:
        self.is_open = False  # type: ignore[misc]


def test_a_request_waits_until_the_size_of_its_model_is_checked() -> None:
    async def use(memory: ModelMemory, slot: Slot) -> None:
        async with memory.using(slot):
            raise AssertionError("the model is larger than the limit")

    async def check() -> None:
        memory, slot = ModelMemory(limit=10), SlowSlot()
        first = asyncio.create_task(use(memory, slot))
        while not slot.is_open:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(use(memory, slot))
        await asyncio.sleep(0.05)
        slot.proceed.set()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(result.__cause__) for result in results] == [UsageError] * 2  # type: ignore[union-attr]
        assert not memory.loaded and not slot.users

    asyncio.run(check())


def connected(address: str, content: int) -> socket.socket:
    """Ask for a document, and read nothing of it."""
    form = {"data": {"source": "en", "target": "en"}, "files": {"file": ("a.txt", b"a" * content)}}
    url = httpx.post(f"{address}/translate_file", timeout=300, **form).json()["translatedFileUrl"]
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(300)
    connection.connect(("127.0.0.1", int(address.rpartition(":")[2])))
    request = f"GET {httpx.URL(url).path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connection.sendall(request.encode() * 2)
    return connection


def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "_READER_SECONDS", 2)
    app = create_server(Directions([copying_direction("en", "de")]))
    with serving(app) as address, connected(address, 4_000_000):
        until(lambda: app.state.monitor.active == 1)
        until(lambda: app.state.monitor.active == 0)


def test_a_client_that_reads_slowly_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_server, "_READER_SECONDS", 2)
    app = create_server(Directions([copying_direction("en", "de")]))
    with serving(app) as address, connected(address, 3_000_000) as connection:
        read, pause = 0, 0
        while read < 2 * 3_000_000:
            part = connection.recv(1 << 16)
            assert part, "closed too early"
            read += len(part)
            if read > pause:
                pause += 300_000
                threading.Event().wait(0.15)  # longer than the limit in all


@pytest.mark.parametrize("stream", [False, True])
def test_large_glossaries_are_not_searched_on_the_event_loop(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    entries_in = Glossary.entries_in

    def noted(self: Glossary, text: str) -> list[tuple[str, str]]:
        threads.add(threading.current_thread().name)
        return entries_in(self, text)

    monkeypatch.setattr(Glossary, "entries_in", noted)
    body = {"q": ["one", "two"], "source": "en", "target": "de", "stream": stream}
    with serving(create_server(Directions([copying_direction("en", "de")]))) as address:
        httpx.post(f"{address}/translate", timeout=300, json={**body, "glossary": {"a": "b"}})
        (loop,) = threads
        threads.clear()
        glossary = {f"a{i}": "b" for i in range(1_000)}
        assert httpx.post(f"{address}/translate", timeout=300, json={**body, "glossary": glossary}).status_code == 200
    assert threads and loop not in threads
