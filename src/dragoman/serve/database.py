"""The SQLite files of a server, which several processes and threads use at the same time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import UsageError

if TYPE_CHECKING:
    import sqlite3  # imported by the first database, because most servers do without one

_WAIT_SECONDS = 5.0
"""Time to wait for another process that writes the database."""

_NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "gluster", "fuse.")
"""Beginnings of the names of file systems that several machines may use."""


class DatabaseError(Exception):
    """The database cannot be read or written."""


class DatabaseBusy(DatabaseError):
    """The database cannot be used now: another process writes it for a long time, or the disk is full."""


class Database:
    """Tables in a file, or in memory if `path` is None.  Its methods may be called in any thread.

    Writing waits for other processes that write, so a server calls `write` and `transaction` in a thread and not in its
    event loop.  `read` has a connection of its own, so that it does not wait for them.

    create: whether a missing file is created; then only its owner may read it, because it has texts of clients.
    tables: SQL that creates them.  Raises UsageError for a file that is not a database, or that cannot be written.
    The methods raise DatabaseError.
    """

    def __init__(self, path: Path | None, *tables: str, create: bool = True) -> None:
        if path is not None and not path.is_file():
            if not create:
                raise UsageError(
                    f"{path}: no such file; specify a database of keys, or create one with 'dragoman keys add'"
                )
            with suppress(OSError):  # SQLite reports it
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._path, self._tables = path, tables
        self._writing = threading.Lock()
        self._reading = self._writing if path is None else threading.Lock()
        self._opened: tuple[sqlite3.Connection, sqlite3.Connection] | None = None
        if path is not None:
            try:
                self._connections()
            except DatabaseError as error:
                raise UsageError(f"{path}: cannot be used as a database: {error}; specify another file") from None

    def _connections(self) -> tuple[sqlite3.Connection, sqlite3.Connection]:
        """Return the connections that write and read.  One in memory is opened when it is first used, with its lock."""
        if self._opened is None:
            opened: list[sqlite3.Connection] = []
            try:
                with _converted_errors():
                    for _ in range(1 if self._path is None else 2):
                        opened.append(_connect(self._path))
                    for table in self._tables:
                        opened[0].execute(table)
            except DatabaseError:
                for connection in opened:
                    connection.close()
                raise
            self._opened = opened[0], opened[-1]
        return self._opened

    def read(self, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query."""
        with self._reading, _converted_errors():
            return self._connections()[1].execute(query, values).fetchall()

    def write(self, statement: str, *values: Any) -> int:
        """Execute a statement, and return the number of rows that it changed."""
        with self._writing, _converted_errors():
            return self._connections()[0].execute(statement, values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write several statements, completely or not at all."""
        with self._writing, _converted_errors():
            writer = self._connections()[0]
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
            except BaseException:
                writer.execute("ROLLBACK")
                raise
            writer.execute("COMMIT")

    def clear_log(self) -> None:
        """Empty the write-ahead log, in which deleted rows remain, unless other processes read it for a long time."""
        with self._writing, _converted_errors():
            self._connections()[0].execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the database."""
        if self._opened is None:
            return
        writer, reader = self._opened
        with self._reading:
            reader.close()
        with self._writing:
            writer.close()


@contextmanager
def _converted_errors() -> Iterator[None]:
    """Convert the errors of SQLite to DatabaseError."""
    import sqlite3

    try:
        yield
    except sqlite3.OperationalError as error:
        raise DatabaseBusy(str(error)) from error
    except sqlite3.Error as error:
        raise DatabaseError(str(error)) from error


def _connect(path: Path | None) -> sqlite3.Connection:
    import sqlite3

    connection = sqlite3.connect(
        path or ":memory:", timeout=_WAIT_SECONDS, check_same_thread=False, isolation_level=None
    )
    try:
        if path is not None:
            # With a write-ahead log, readers do not wait for writers, but all processes must be on one machine.
            connection.execute(f"PRAGMA journal_mode = {'DELETE' if _is_shared(path) else 'WAL'}")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")  # deleted texts are overwritten
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _is_shared(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether a file is on a file system that several machines may use."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    kinds = {Path(point.replace("\\040", " ")): kind for _, point, kind, *_ in map(str.split, lines)}
    folder = path.resolve().parent
    nearest = next((kinds[each] for each in (folder, *folder.parents) if each in kinds), "")
    return nearest.startswith(_NETWORK)
