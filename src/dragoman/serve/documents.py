"""Documents that wait to be fetched, in SQLite, for servers that share a database."""

from __future__ import annotations

import time
from pathlib import Path

from dragoman.serve.database import Database

__all__ = ["DocumentStore"]


class DocumentStore:
    """The state of documents by identifier; several server processes may share the file.

    kept_seconds: time after which a document is deleted.  Raises UsageError for a file that is not a database.
    """

    def __init__(self, path: Path, kept_seconds: float) -> None:
        self._kept_seconds = kept_seconds
        self._database = Database(
            path,
            "CREATE TABLE IF NOT EXISTS documents (id TEXT PRIMARY KEY, begun REAL NOT NULL, name TEXT NOT NULL, "
            "key TEXT NOT NULL, size INTEGER NOT NULL, data BLOB, characters INTEGER, error TEXT)",
        )

    def add(self, identifier: str, name: str, key: str, size: int, most: int, most_bytes: int) -> bool:
        """Store a document that is being translated, unless there are too many; return whether it is stored.

        size: of the upload in bytes.  most, most_bytes: number and size of all documents.
        """
        statement = (
            "INSERT INTO documents (id, begun, name, key, size) SELECT ?, ?, ?, ?, ? WHERE "
            "(SELECT count(*) < ? AND coalesce(sum(size), 0) + ? <= ? FROM documents WHERE begun >= ?)"
        )
        values = identifier, time.time(), name, key, size, most, size, most_bytes, self._oldest
        return self._database.write(statement, *values) > 0

    def finish(self, identifier: str, data: bytes | None, characters: int, error: str | None) -> None:
        """Store the translation of a document, or the error."""
        self._database.write(
            "UPDATE documents SET data = ?, characters = ?, error = ?, size = ? WHERE id = ?",
            data, characters, error, len(data or b""), identifier,
        )  # fmt: skip

    def find(self, identifier: str) -> tuple[str, str, int, bytes | None, int, str | None] | None:
        """Return name, key, size, data, characters and error of a document; None if it is unknown."""
        query = (
            "SELECT name, key, size, data, coalesce(characters, 0), error FROM documents WHERE id = ? AND begun >= ?"
        )
        return next(iter(self._database.read(query, identifier, self._oldest)), None)

    def delete(self, *identifiers: str) -> None:
        """Delete documents."""
        marks = ", ".join("?" * len(identifiers))
        if self._database.write(f"DELETE FROM documents WHERE id IN ({marks})", *identifiers):
            self._database.clear_log()

    def drop_old(self) -> None:
        """Delete the documents whose time is over."""
        if self._database.read("SELECT 1 FROM documents WHERE begun < ? LIMIT 1", self._oldest):
            self._database.write("DELETE FROM documents WHERE begun < ?", self._oldest)
            self._database.clear_log()

    @property
    def _oldest(self) -> float:
        return time.time() - self._kept_seconds

    def close(self) -> None:
        """Close the database."""
        self._database.close()
