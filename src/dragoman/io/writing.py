"""Writing files so that they are complete or absent, and saying why a file could not be written."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dragoman.errors import TrainingError

__all__ = ["atomic_file", "flush_file", "flush_folder", "is_full", "not_written", "reason_of", "writing"]

_REASONS = {
    errno.ENOSPC: ("the disk is full", "Free some space, or choose a folder on another disk."),
    errno.EDQUOT: ("the disk is full (quota exceeded)", "Free some space, or choose a folder on another disk."),
    errno.EFBIG: ("it exceeds the limit on file sizes", "Raise the limit (ulimit -f)."),
    errno.EROFS: ("the file system is read-only", "Choose a folder that can be written."),
    errno.EACCES: ("permission denied", "Choose a folder that you may write to, or change its permissions."),
    errno.EPERM: ("operation not permitted", "Choose a folder that you may write to."),
}
_NO_FOLDER_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM, errno.ENOSYS}


def is_full(error: OSError) -> bool:
    """Whether the disk or the user's share of it is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def reason_of(error: OSError) -> str:
    """Why a file could not be written, in a few words."""
    return _REASONS[error.errno][0] if error.errno in _REASONS else error.strerror or str(error)


def not_written(what: object, error: OSError, also: str = "") -> str:
    """The message where `what` (a path, mostly) could not be written; also: sentences before the advice."""
    advice = _REASONS[error.errno][1] if error.errno in _REASONS else "Remove the cause, or name another place."
    return " ".join(part for part in (f"{what} could not be written: {reason_of(error)}.", also, advice) if part)


@contextmanager
def writing(path: Path, saved: Callable[[], str] = str) -> Generator[None, None, None]:
    """Turn an OSError while training writes `path` into a TrainingError; saved: returns what is safe, a sentence."""
    try:
        yield
    except OSError as error:
        raise TrainingError(f"{not_written(path, error, saved())} Then run the same command again.") from error


@contextmanager
def atomic_file(path: Path) -> Generator[BinaryIO, None, None]:
    """Write `path` completely or not at all: open a temporary file that replaces `path` when the block ends.

    The content is flushed to the disk first.  When the block raises, the temporary file is removed and `path` stays as
    it was.  Processes and threads may write the same `path` at the same time: the last to finish wins.  Raises OSError.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        flush_folder(path.parent)
    except BaseException:
        with suppress(OSError):  # a read-only file system refuses this too; the first error is the one to report
            unfinished.unlink(missing_ok=True)
        raise


def flush_file(path: Path) -> None:
    """Force a file's content to the disk."""
    with path.open("r+b") as file:  # Windows flushes only what is open for writing
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Force a folder's names to the disk; without effect where the system cannot do that, as on Windows."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # what Windows answers for any folder
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_FSYNC:
            raise
    finally:
        os.close(descriptor)
