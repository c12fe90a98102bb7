"""Better translations that clients suggest, appended to a file for the operator; the server never reads them back."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from dragoman.errors import DragomanError, UsageError

_MAX_BYTES = 64 << 20
"""Size at which the file accepts no more, so that clients cannot fill the disk."""

_LOCKED = "another program has locked the file"
_LOCK_SECONDS = 5.0
"""Time to wait for another process that has locked the file; meanwhile a thread of the server is occupied."""


class SuggestionFile:
    """JSON lines, one per suggestion, with `time` (UTC), `source`, `target` (codes), `text` and `translation`.

    The file is opened for each suggestion, so that the operator can move it away.  Several servers may append to it.
    Raises UsageError if it cannot be written.
    """

    def __init__(self, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        self.path, self.max_bytes = path, max_bytes
        self._lock = threading.Lock()
        try:
            os.close(self._open())
        except OSError as error:
            raise UsageError(
                f"suggestions = {str(path)!r}: cannot be written ({error.strerror or error}); specify a file in a "
                "folder that exists and can be written"
            ) from None

    def append(self, source: str, target: str, text: str, translation: str) -> None:
        """Store a suggestion, completely or not at all.  Raises DragomanError if it cannot be written."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"time": now, "source": source, "target": target, "text": text, "translation": translation}
        line = json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            if not self._lock.acquire(timeout=_LOCK_SECONDS):
                raise OSError(None, _LOCKED)
            try:
                self._write(line)
            finally:
                self._lock.release()
        except OSError as error:
            raise DragomanError(
                f"the suggestion cannot be stored ({error.strerror or error}); tell the operator of the server"
            ) from None

    def _write(self, line: bytes) -> None:
        file = self._open()
        try:
            with _locked(file):
                size = os.fstat(file).st_size
                if size + len(line) > self.max_bytes:
                    raise DragomanError("the file of suggestions is full; tell the operator of the server")
                if size:
                    os.lseek(file, size - 1, os.SEEK_SET)
                    if os.read(file, 1) != b"\n":  # a process was killed while it wrote
                        line = b"\n" + line
                try:
                    written = 0
                    while written < len(line):
                        written += os.write(file, line[written:])
                    os.fsync(file)
                except OSError:
                    os.ftruncate(file, size)  # such as a full disk, on which a part of the line was written
                    raise
        finally:
            os.close(file)

    def _open(self) -> int:
        """Open the file; only its owner may read it, because it has texts of clients.  Raises OSError."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # does not wait at a pipe
        file = os.open(self.path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(None, "it is not a regular file")
        return file


@contextmanager
def _locked(file: int) -> Iterator[None]:
    """Hold the lock of an open file, where the system has such locks; closing the file releases it as well.

    Raises OSError if another process has locked it for a long time.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        yield
        return
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                raise OSError(None, _LOCKED) from None
            time.sleep(0.01)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
