"""What to say where a run cannot be written: which path, why, and what to do next."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from dragoman.errors import TrainingError

__all__ = ["writing"]

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
_NO_ACCESS = {errno.EACCES, errno.EPERM, errno.EROFS}


@contextmanager
def writing(path: Path, saved: Callable[[], str] = str) -> Generator[None, None, None]:
    """Turn an `OSError` while `path` is written into a `TrainingError` with advice; saved: what is safe, a sentence."""
    try:
        yield
    except OSError as error:
        parts = (f"{path} could not be written: {_reason(error)}.", saved(), _advice(error))
        raise TrainingError(" ".join(filter(None, parts))) from error


def _reason(error: OSError) -> str:
    return _FULL.get(error.errno or 0) or error.strerror or str(error)


def _advice(error: OSError) -> str:
    if error.errno in _FULL:
        return "Free some space and run the same command again, or give another --out."
    if error.errno == errno.EFBIG:
        return "Raise the limit on the size of files (ulimit -f) and run the same command again."
    if error.errno in _NO_ACCESS:
        return "Make the folder writable, or give another --out."
    return "Give another --out, or run the same command again once the cause is removed."
