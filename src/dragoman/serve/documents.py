"""Documents that wait to be fetched, in SQLite, for servers that share a database."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.serve.database import Database

__all__ = ["DocumentLimit", "DocumentStore"]


class DocumentLimit(NamedTuple):
    """A number of documents and of their bytes."""

    number: int
    bytes: int

    def allows(self, sizes: Sequence[int], size: int) -> bool:
        """Return whether a document of `size` bytes is accepted beside those of `sizes`."""
        return len(sizes) < self.number and sum(sizes) + size <= self.bytes


class DocumentStore:
    """The state of documents by identifier; several server processes may share the file.

    kept_seconds: time after which a document is deleted.  limits: of all clients and of each.
    Raises UsageError for a file that is not a database.
    """

    def __init__(self, path: Path, kept_seconds: float, limits: tuple[DocumentLimit, DocumentLimit]) -> None:
        self._kept_seconds, self._limits = kept_seconds, limits
        self._database = Database(
            path,
            "CREATE TABLE IF NOT EXISTS uploads (id TEXT PRIMARY KEY, begun REAL NOT NULL, client TEXT NOT NULL, "
            "name TEXT NOT NULL, key TEXT NOT NULL, size INTEGER NOT NULL, data BLOB, characters INTEGER, error TEXT)",
        )

    def add(self, identifier: str, client: str, name: str, key: str, size: int) -> bool:
        """Store a document that is being translated, unless there are too many; return whether it is stored.

        size: of the upload in bytes.
        """
        statement = (
            "INSERT INTO uploads (id, begun, client, name, key, size) SELECT ?, ?, ?, ?, ?, ? WHERE "
            "(SELECT count(*) < ? AND coalesce(sum(size), 0) + ? <= ? FROM uploads WHERE begun >= ?) AND "
            "(SELECT count(*) < ? AND coalesce(sum(size), 0) + ? <= ? FROM uploads WHERE begun >= ? "
            "AND client = ?)"
        )
        of_all, of_client = self._limits
        values = identifier, time.time(), client, name, key, size
        counted = of_all.number, size, of_all.bytes, self._oldest, of_client.number, size, of_client.bytes, self._oldest
        return self._database.write(statement, *values, *counted, client) > 0

    def finish(self, identifier: str, data: bytes | None, characters: int, error: str | None) -> None:
        """Store the translation of a document, or the error."""
        self._database.write(
            "UPDATE uploads SET data = ?, characters = ?, error = ?, size = ? WHERE id = ?",
            data, characters, error, len(data or b""), identifier,
        )  # fmt: skip

    def find(self, identifier: str) -> tuple[str, str, int, bytes | None, int, str | None] | None:
        """Return name, key, size, data, characters and error of a document; None if it is unknown."""
        query = "SELECT name, key, size, data, coalesce(characters, 0), error FROM uploads WHERE id = ? AND begun >= ?"
        return next(iter(self._database.read(query, identifier, self._oldest)), None)

    def delete(self, *identifiers: str) -> None:
        """Delete documents."""
        marks = ", ".join("?" * len(identifiers))
        if self._database.write(f"DELETE FROM uploads WHERE id IN ({marks})", *identifiers):
            self._database.clear_log()

    def drop_old(self) -> None:
        """Delete the documents whose time is over."""
        if self._database.read("SELECT 1 FROM uploads WHERE begun < ? LIMIT 1", self._oldest):
            self._database.write("DELETE FROM uploads WHERE begun < ?", self._oldest)
            self._database.clear_log()

    @property
    def _oldest(self) -> float:
        return time.time() - self._kept_seconds

    def close(self) -> None:
        """Close the database."""
        self._database.close()
