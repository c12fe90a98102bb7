"""The command in a pseudo-terminal, as a process of its own."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from small_run import COMMAND

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"} | {"OMP_NUM_THREADS": "1"}


class Terminal:
    """`dragoman` with these arguments; a screen is read until a text appears on it."""

    def __init__(self, *args: str | Path) -> None:
        pty = pytest.importorskip("pty")
        self.process, self.screen = 0, b""
        self.process, self.descriptor = pty.fork()
        if self.process == 0:
            os.execvpe(COMMAND[0], [*COMMAND, *map(str, args)], ENVIRONMENT)

    def until(self, text: bytes) -> str:
        """Return what appears up to `text`."""
        while text not in self.screen and (more := self._read()):
            self.screen += more
        assert text in self.screen, self.screen
        seen, _, self.screen = self.screen.partition(text)
        return seen.decode()

    def send(self, text: bytes) -> None:
        os.write(self.descriptor, text)

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C until the process ends, because readline ignores a signal between its prompt and its wait."""
        for _ in range(30):
            self.send(b"\x03")
            if select.select([self.descriptor], [], [], 2)[0]:
                break
        return self.end()

    def end(self) -> tuple[int, str]:
        while more := self._read():
            self.screen += more
        code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        os.close(self.descriptor)
        return code, self.screen.decode()

    def _read(self) -> bytes:
        if not select.select([self.descriptor], [], [], 120)[0]:
            os.kill(self.process, signal.SIGKILL)
        try:
            return os.read(self.descriptor, 4096)
        except OSError:  # the other side is closed
            return b""
