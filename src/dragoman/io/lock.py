"""One process per run folder: a lock that names its holder.

The lock is the operating system's (`filelock`), which releases it when the process ends in whatever way, also by a kill
or a reboot.  On a file system without locks its place is taken by a marker file, which counts as stale when the process
that it names no longer exists.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from dragoman.errors import UsageError
from dragoman.io.reading import read_json
from dragoman.io.writing import writing

__all__ = ["LOCK_FILE", "lock_run"]

LOCK_FILE, MARKER_FILE, HOLDER_FILE = ".lock", ".lock.marker", ".lock.json"
_UNSUPPORTED = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


@contextmanager
def lock_run(folder: Path) -> Generator[None, None, None]:
    """Hold the lock of a run folder, which is created if needed and removed again if nothing was written to it.

    Raises `UsageError` naming the holder where another process has the lock, and `TrainingError` where the folder
    cannot be written.
    """
    holder = folder / HOLDER_FILE
    with writing(folder):
        created = not folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
        lock = _acquire(folder)
    try:
        with writing(folder):
            holder.write_text(json.dumps(_this_process()), encoding="utf-8")
        yield
    finally:
        # Removed while the lock is held: whoever opened the file before finds it without a name and tries again.
        for path in (holder, folder / LOCK_FILE):
            with suppress(OSError):  # Windows keeps a file that is open
                path.unlink()
        lock.release()
        if created:
            with suppress(OSError):  # not empty: the run has begun
                folder.rmdir()


def _acquire(folder: Path) -> BaseFileLock:
    lock: BaseFileLock = FileLock(folder / LOCK_FILE, blocking=False, fallback_to_soft=False)
    try:
        try:
            lock.acquire()
        except (OSError, NotImplementedError) as error:
            if isinstance(error, Timeout) or getattr(error, "errno", errno.ENOSYS) not in _UNSUPPORTED:
                raise
            lock = SoftFileLock(folder / MARKER_FILE, blocking=False)
            lock.acquire()
    except Timeout:
        raise UsageError(f"{folder}: {_holder(folder)}") from None
    return lock


def _this_process() -> dict[str, str | int]:
    started = datetime.now().astimezone().isoformat(" ", "seconds")
    return {"process": os.getpid(), "host": socket.gethostname(), "started": started}


def _holder(folder: Path) -> str:
    """Who has the lock, and what to do."""
    who = "another process"
    with suppress(UsageError, LookupError):
        about = read_json(folder / HOLDER_FILE, UsageError, "")
        who = f"process {about['process']} on {about['host']} (since {about['started']})"
    advice = (
        "wait until it has finished, stop it (its state is saved, and the run can be resumed), or name another folder"
    )
    if (folder / MARKER_FILE).exists():
        advice += f"; if that process no longer exists, delete {folder / MARKER_FILE}"
    return f"this run is in use by {who}; {advice}"
