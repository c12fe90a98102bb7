"""The glossaries that clients store on the server, in SQLite."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dragoman.errors import UsageError
from dragoman.serve.keys import open_database, transaction

__all__ = ["Dictionaries", "GlossaryStore", "StoredGlossary"]

Dictionaries = Mapping[tuple[str, str], dict[str, str]]
"""Target terms by source terms, by source and target language."""

_MOST = 1_000
"""Glossaries of one owner."""
_MOST_CHARACTERS = 10_000_000
"""Characters of one glossary as JSON; changes could otherwise add terms without end."""


@dataclass(frozen=True)
class StoredGlossary:
    """A stored glossary; created: ISO 8601 in UTC, with microseconds."""

    id: str
    name: str
    dictionaries: Dictionaries
    created: str


class GlossaryStore:
    """Glossaries by owner; several server processes may share the file.

    path: file of the database; None = in memory, until the server ends.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._database = open_database(path)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS multilingual_glossaries (id TEXT PRIMARY KEY, owner TEXT NOT NULL, "
            "name TEXT NOT NULL, dictionaries TEXT NOT NULL, created TEXT NOT NULL)"
        )

    def add(self, owner: str, name: str, dictionaries: Dictionaries) -> StoredGlossary:
        """Store a glossary.  Raises UsageError if the owner has too many, or if it is too large."""
        if len(self.owned_by(owner)) >= _MOST:
            raise UsageError(f"{_MOST:,} glossaries are stored already; delete some first")
        created = datetime.now(UTC).isoformat(timespec="microseconds")  # clients expect them, also if they are 0
        stored = StoredGlossary(str(uuid.uuid4()), name, dictionaries, created)
        values = stored.id, owner, name, _written(dictionaries), created
        with self._lock:
            self._database.execute("INSERT INTO multilingual_glossaries VALUES (?, ?, ?, ?, ?)", values)
        return stored

    def owned_by(self, owner: str) -> list[StoredGlossary]:
        """Return the glossaries of an owner, oldest first."""
        with self._lock:
            return self._select("owner = ? ORDER BY created, id", owner)

    def find(self, owner: str, identifier: str) -> StoredGlossary | None:
        """Return a glossary of an owner."""
        with self._lock:
            return next(iter(self._select("owner = ? AND id = ?", owner, identifier)), None)

    def change(
        self, owner: str, identifier: str, change: Callable[[StoredGlossary], StoredGlossary]
    ) -> StoredGlossary | None:
        """Store what `change` returns for a glossary of an owner, if there is one, and return it.

        Changes of several processes follow each other.  Raises UsageError if the glossary gets too large.
        """
        with self._lock, transaction(self._database):
            found = next(iter(self._select("owner = ? AND id = ?", owner, identifier)), None)
            if found is None:
                return None
            changed = change(found)
            values = changed.name, _written(changed.dictionaries), identifier
            self._database.execute("UPDATE multilingual_glossaries SET name = ?, dictionaries = ? WHERE id = ?", values)
        return changed

    def delete(self, owner: str, identifier: str) -> bool:
        """Delete a glossary; return whether the owner had it."""
        statement = "DELETE FROM multilingual_glossaries WHERE owner = ? AND id = ?"
        with self._lock:
            return self._database.execute(statement, (owner, identifier)).rowcount > 0

    def _select(self, condition: str, *values: str) -> list[StoredGlossary]:
        query = f"SELECT id, name, dictionaries, created FROM multilingual_glossaries WHERE {condition}"
        rows = self._database.execute(query, values).fetchall()
        return [StoredGlossary(identifier, name, _read(text), created) for identifier, name, text, created in rows]

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _written(dictionaries: Dictionaries) -> str:
    rows: list[Any] = [[*languages, entries] for languages, entries in dictionaries.items()]
    text = json.dumps(rows, ensure_ascii=False)
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(
            f"the glossary has {len(text):,} characters; accepted: at most {_MOST_CHARACTERS:,}. Divide it into several"
        )
    return text


def _read(text: str) -> Dictionaries:
    return {(source, target): entries for source, target, entries in json.loads(text)}
