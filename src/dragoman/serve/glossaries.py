"""The glossaries that clients store on the server, in SQLite."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dragoman.errors import UsageError
from dragoman.serve.database import Database

__all__ = ["GlossaryStore", "StoredGlossary"]

_MOST = 1_000
"""Glossaries of one owner."""
_MOST_BYTES = 10 << 20
"""Size of the entries of one owner."""
_MOST_BYTES_OF_ALL = 256 << 20
"""Size of the entries of all owners, who are unlimited in number if keys are not checked."""


@dataclass(frozen=True)
class StoredGlossary:
    """A stored glossary; created: ISO 8601 in UTC."""

    id: str
    name: str
    source: str
    target: str
    entries: dict[str, str]
    created: str


class GlossaryStore:
    """Glossaries by owner; several server processes may share the file.

    path: file of the database; None = in memory, until the server ends.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._database = Database(
            path,
            "CREATE TABLE IF NOT EXISTS glossaries (id TEXT PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, "
            "source TEXT NOT NULL, target TEXT NOT NULL, entries TEXT NOT NULL, created TEXT NOT NULL)",
        )

    def add(self, owner: str, name: str, source: str, target: str, entries: dict[str, str]) -> StoredGlossary:
        """Store a glossary.  Raises UsageError if the owner, or all owners together, have too many."""
        text = json.dumps(entries, ensure_ascii=False)
        sizes = "SELECT count(*), coalesce(sum(length(CAST(entries AS BLOB))), 0) FROM glossaries"
        ((count, size),) = self._database.read(f"{sizes} WHERE owner = ?", owner)
        ((_, of_all),) = self._database.read(sizes)
        new = len(text.encode())
        if count >= _MOST:
            raise UsageError(f"{_MOST:,} glossaries are stored already; delete some first")
        if size + new > _MOST_BYTES:
            raise UsageError(f"glossaries with more than {_MOST_BYTES >> 20} MiB of entries; delete some first")
        if of_all + new > _MOST_BYTES_OF_ALL:
            raise UsageError("the server has no room for more glossaries; tell its operator")
        created = datetime.now(UTC).isoformat()
        stored = StoredGlossary(str(uuid.uuid4()), name, source, target, entries, created)
        values = stored.id, owner, name, source, target, text, created
        self._database.write("INSERT INTO glossaries VALUES (?, ?, ?, ?, ?, ?, ?)", *values)
        return stored

    def owned_by(self, owner: str) -> list[StoredGlossary]:
        """Return the glossaries of an owner, oldest first."""
        return self._select("owner = ? ORDER BY created, id", owner)

    def find(self, owner: str, identifier: str) -> StoredGlossary | None:
        """Return a glossary of an owner."""
        return next(iter(self._select("owner = ? AND id = ?", owner, identifier)), None)

    def delete(self, owner: str, identifier: str) -> bool:
        """Delete a glossary; return whether the owner had it."""
        return self._database.write("DELETE FROM glossaries WHERE owner = ? AND id = ?", owner, identifier) > 0

    def _select(self, condition: str, *values: str) -> list[StoredGlossary]:
        query = f"SELECT id, name, source, target, entries, created FROM glossaries WHERE {condition}"
        rows = self._database.read(query, *values)
        return [
            StoredGlossary(identifier, name, source, target, json.loads(entries), created)
            for identifier, name, source, target, entries, created in rows
        ]

    def close(self) -> None:
        """Close the database."""
        self._database.close()
