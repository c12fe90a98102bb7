"""Documents that wait to be fetched, in SQLite, for servers that share a database."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from dragoman.serve.keys import open_database

__all__ = ["DocumentStore"]


class DocumentStore:
    """The state of documents by identifier; several server processes may share the file.

    kept_seconds: time after which a document is deleted.
    """

    def __init__(self, path: Path, kept_seconds: float) -> None:
        self._lock, self._kept_seconds = threading.Lock(), kept_seconds
        self._database = open_database(path)
        self._database.execute("PRAGMA secure_delete = ON")  # deleted texts are overwritten
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS documents (id TEXT PRIMARY KEY, begun REAL NOT NULL, name TEXT NOT NULL, "
            "key TEXT NOT NULL, size INTEGER NOT NULL, data BLOB, characters INTEGER, error TEXT)"
        )
        self.drop_old()

    def add(self, identifier: str, name: str, key: str, size: int) -> None:
        """Store a document that is being translated.  size: of the upload in bytes."""
        values = identifier, time.time(), name, key, size
        self._execute("INSERT INTO documents (id, begun, name, key, size) VALUES (?, ?, ?, ?, ?)", *values)

    def finish(self, identifier: str, data: bytes | None, characters: int, error: str | None) -> None:
        """Store the translation of a document, or the error."""
        size = len(data or b"")
        self._execute(
            "UPDATE documents SET data = ?, characters = ?, error = ?, size = ? WHERE id = ?",
            data, characters, error, size, identifier,
        )  # fmt: skip

    def find(self, identifier: str) -> tuple[str, str, int, bytes | None, int, str | None] | None:
        """Return name, key, size, data, characters and error of a document; None if it is unknown."""
        query = "SELECT name, key, size, data, coalesce(characters, 0), error FROM documents WHERE id = ?"
        return next(iter(self._execute(query, identifier)), None)

    def delete(self, identifier: str) -> None:
        """Delete a document."""
        self._execute("DELETE FROM documents WHERE id = ?", identifier)

    def drop_old(self) -> None:
        """Delete the documents whose time is over."""
        self._execute("DELETE FROM documents WHERE begun < ?", time.time() - self._kept_seconds)

    def held(self) -> tuple[int, int]:
        """Return the number of documents and their bytes."""
        ((count, size),) = self._execute("SELECT count(*), coalesce(sum(size), 0) FROM documents")
        return count, size

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._database.execute(statement, values).fetchall()
