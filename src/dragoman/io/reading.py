"""Reading files that may be damaged, replaced or not be regular files: bounded in time and memory, never mapped.

A memory-mapped file that shrinks ends the process with SIGBUS, and opening a named pipe blocks until someone writes to
it.  The functions here open without blocking, accept regular files only, and read with ordinary system calls.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import threading
import weakref
from io import FileIO
from pathlib import Path
from typing import Any

from dragoman.errors import DataError, DragomanError

__all__ = ["JSON_LIMIT", "RandomAccessFile", "open_regular", "read_bytes", "read_json", "read_text"]

JSON_LIMIT = 64 << 20
"""Largest JSON file that is read, in bytes; those of a model folder take some kilobytes."""

# Constants that Windows lacks, or that only Windows has, count as 0.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_MOST = 1 << 30
"""Bytes per system call: no platform accepts more than 2 GiB."""
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading, unbuffered.  Raises OSError for folders, pipes, devices and loops of links."""
    descriptor = os.open(path, _FLAGS)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = next((name for test, name in _KINDS if test(mode)), "a special file")
            raise OSError(errno.EINVAL, f"{kind}, not a regular file", str(path))
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, error: type[DragomanError], advice: str, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes.  Raises `error`; `advice` ends its message."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise error(f"{path}: {size:,} bytes; accepted: at most {limit:,}. {advice}")
            return _read(file, size)
    except FileNotFoundError:
        raise error(f"{path}: missing. {advice}") from None
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror or problem}. {advice}") from None


def _read(file: FileIO, count: int) -> bytes:
    """Up to `count` bytes; fewer only at the end of the file."""
    parts = []
    while count and (part := file.read(min(count, _MOST))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_text(path: Path, error: type[DragomanError], advice: str, limit: int = JSON_LIMIT) -> str:
    """A small UTF-8 file as text.  Raises `error`."""
    try:
        return read_bytes(path, error, advice, limit).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(f"{path}: cannot be read: not UTF-8 at byte {problem.start:,}. {advice}") from None


def read_json(path: Path, error: type[DragomanError], advice: str) -> dict[str, Any]:
    """A small file that holds a JSON object.  Raises `error`."""
    text = read_text(path, error, advice)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        why = f"not JSON: {problem}"
    except RecursionError:
        why = "its brackets are nested too deeply"
    except ValueError:
        why = "an integer in it has too many digits"
    else:
        if isinstance(value, dict):
            return value
        why = f"a JSON object is expected, not {type(value).__name__}"
    raise error(f"{path}: cannot be read: {why}. {advice}")


class RandomAccessFile:
    """A file read at any offset through one file descriptor, so that a shorter file is an error and not a signal."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._file = open_regular(path)
        self._lock = threading.Lock()
        weakref.finalize(self, self._file.close)

    def close(self) -> None:
        """Close the file, which nothing can read afterwards.  Windows renames no folder with an open file in it."""
        self._file.close()

    def __len__(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def digest(self) -> str:
        """The BLAKE2b hash of the whole file.  Raises OSError."""
        with self._lock:
            self._file.seek(0)
            return hashlib.file_digest(self._file, "blake2b").hexdigest()

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`.  Raises DataError where the file cannot be read or holds fewer."""
        try:
            found = self._at(offset, count)
        except OSError as problem:
            raise DataError(f"{self.path}: cannot be read: {problem.strerror or problem}. Start again.") from None
        if len(found) != count:
            raise DataError(
                f"{self.path}: bytes {offset:,} to {offset + count:,} are missing; the file was changed while it was "
                "in use. Start again, and do not change it meanwhile."
            )
        return found

    def _at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        if not hasattr(os, "pread"):  # Windows
            with self._lock:
                self._file.seek(offset)
                return _read(self._file, count)
        found = os.pread(self._file.fileno(), min(count, _MOST), offset)
        if len(found) == count:
            return found
        parts, at = [found], offset + len(found)
        while at < offset + count and (part := os.pread(self._file.fileno(), min(offset + count - at, _MOST), at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)
