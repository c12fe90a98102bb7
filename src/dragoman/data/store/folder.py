"""Folders of prepared data: `store.json` describes all files, and the folder is built once, by one of the processes
that need it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from dragoman.errors import DataError, TrainingError
from dragoman.io.reading import RandomAccessFile, read_json
from dragoman.io.run_log import Reporter
from dragoman.io.writing import atomic_folder, not_written

ABOUT = "store.json"
REMEDY = "Remove the folder; the next training run rebuilds it."
VERIFIED = 256 << 20
"""Bytes up to which all files are verified when a folder is opened; larger ones, in pieces when they are read."""
_MARK = "damaged"
_POLL = 0.5  # seconds
_Prepared = TypeVar("_Prepared")


class DamagedStoreError(DataError):
    """Prepared data that differ from what was written; the message lists the folder and all damaged files."""


def describe(path: Path) -> dict[str, Any]:
    """Return the size and the BLAKE2b hash of a file.  Raises OSError."""
    file = RandomAccessFile(path)
    return {"bytes": len(file), "blake2b": file.digest()}


def _digest(about: Mapping[str, Any]) -> str:
    text = json.dumps({key: value for key, value in about.items() if key != "digest"}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def write_about(folder: Path, about: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> None:
    """Write `store.json` with the sizes and hashes of all other files.  known: those that need not be computed."""
    names = sorted(path.name for path in folder.iterdir() if path.name != ABOUT)
    about = {**about, "files": {name: known.get(name) or describe(folder / name) for name in names}}
    (folder / ABOUT).write_text(json.dumps(about | {"digest": _digest(about)}, indent=1), encoding="utf-8")


def read_about(folder: Path, version: object) -> dict[str, Any]:
    """Return `store.json`.

    Raises DamagedStoreError if it is damaged or of another version, or if the folder is marked (see `damaged`).
    """
    about = read_json(folder / ABOUT, DamagedStoreError, REMEDY)
    if about.get("digest") != _digest(about) or about.get("version") != version:
        raise DamagedStoreError(f"{folder / ABOUT}: altered, or of another version. {REMEDY}")
    if (folder / _MARK).exists():
        raise DamagedStoreError(f"{folder}: a training run found damaged data. {REMEDY}")
    return about


def damaged(path: Path) -> DataError:
    """Return the error for a file with damaged content; mark its folder, so that the next run rebuilds it."""
    with suppress(OSError):
        (path.parent / _MARK).touch()
    return DataError(f"{path}: was changed or is damaged. Run the command again to rebuild it.")


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
    if not os.path.lexists(folder / ABOUT):
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
