"""Folders of prepared data that are built once, by one of the processes that need them."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from dragoman.data.store.reader import DamagedStoreError
from dragoman.errors import TrainingError
from dragoman.io.run_log import Reporter
from dragoman.io.writing import atomic_folder, not_written

__all__ = ["build_once"]

_POLL = 0.5  # seconds
_Prepared = TypeVar("_Prepared")


def build_once(
    folder: Path,
    opened: Callable[[Path], _Prepared],
    write: Callable[[Path, ExitStack], None],
    reporter: Reporter,
) -> tuple[_Prepared, bool]:
    """Open the prepared data in a folder, or write them there; return them, and whether they existed.

    opened: opens a complete folder and raises DamagedStoreError if it is damaged.  write: writes the files into a
    temporary folder, and may enter contexts.  Raises TrainingError if the folder cannot be written.
    """
    found = _reused(folder, opened, reporter)
    if found is not None:
        return found, True
    try:
        with ExitStack() as stack:
            if stack.enter_context(_turn(folder, reporter)):
                found = _reused(folder, opened, reporter)
                if found is not None:
                    return found, True  # another process has built it meanwhile
            unfinished = stack.enter_context(atomic_folder(folder, is_valid=lambda path: _is_valid(path, opened)))
            write(unfinished, stack)
        return opened(folder), False
    except OSError as error:
        raise TrainingError(not_written(f"the prepared data ({folder})", error)) from error


def _reused(folder: Path, opened: Callable[[Path], _Prepared], reporter: Reporter) -> _Prepared | None:
    if not os.path.lexists(folder / "store.json"):
        return None
    try:
        return opened(folder)
    except DamagedStoreError as error:
        reporter.warn(f"prepared data is damaged and will be rebuilt: {error}")
        return None


def _is_valid(folder: Path, opened: Callable[[Path], object]) -> bool:
    try:
        opened(folder)
    except DamagedStoreError:
        return False
    return True


@contextmanager
def _turn(folder: Path, reporter: Reporter) -> Generator[bool, None, None]:
    """Wait until no other process builds this folder; yield whether it had to wait.

    The lock only avoids double work: two processes that build the same folder do not disturb each other.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock, waited = FileLock(folder.with_name(f".{folder.name}.lock"), fallback_to_soft=False), False
    try:
        while True:
            with suppress(Timeout):
                lock.acquire(timeout=_POLL)
                break
            if not waited:
                reporter.phase("waiting for another process that prepares the same data")
            waited = True
    except (OSError, NotImplementedError):  # a file system without locks
        pass
    try:
        yield waited
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
