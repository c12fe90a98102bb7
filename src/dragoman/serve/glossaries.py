"""The glossaries that clients store on the server, in SQLite."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import UsageError
from dragoman.serve.database import Database

if TYPE_CHECKING:
    import sqlite3

Dictionaries = Mapping[tuple[str, str], dict[str, str]]
"""Target terms by source terms, by source and target language."""

_MOST = 1_000
"""Glossaries of one owner."""
_MOST_BYTES = 10 << 20
"""Size of the glossaries of one owner, as JSON."""
_MOST_BYTES_OF_ALL = 256 << 20
"""Size of the glossaries of all owners, who are unlimited in number if keys are not checked."""
_COLUMNS = "SELECT id, name, dictionaries, created FROM multilingual_glossaries WHERE "


@dataclass(frozen=True)
class StoredGlossary:
    """A stored glossary; created: ISO 8601 in UTC, with microseconds."""

    id: str
    name: str
    dictionaries: Dictionaries
    created: str


class GlossaryStore:
    """Glossaries by owner; several server processes may share the file.

    path: file of the database; None = in memory, until the server ends.  `add`, `change` and `delete` may wait for
    other processes and are called in a thread.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._database = Database(
            path,
            "CREATE TABLE IF NOT EXISTS multilingual_glossaries (id TEXT PRIMARY KEY, owner TEXT NOT NULL, "
            "name TEXT NOT NULL, dictionaries TEXT NOT NULL, created TEXT NOT NULL)",
        )

    def add(self, owner: str, name: str, dictionaries: Dictionaries) -> StoredGlossary:
        """Store a glossary.  Raises UsageError if the owner, or all owners together, have too many."""
        created = datetime.now(UTC).isoformat(timespec="microseconds")  # clients expect them, also if they are 0
        stored = StoredGlossary(str(uuid.uuid4()), name, dictionaries, created)
        text = _written(dictionaries)
        with self._database.transaction() as connection:
            _check_room(connection, owner, stored.id, text)
            values = stored.id, owner, name, text, created
            connection.execute("INSERT INTO multilingual_glossaries VALUES (?, ?, ?, ?, ?)", values)
        return stored

    def owned_by(self, owner: str) -> list[StoredGlossary]:
        """Return the glossaries of an owner, oldest first."""
        return [_read(row) for row in self._database.read(f"{_COLUMNS} owner = ? ORDER BY created, id", owner)]

    def find(self, owner: str, identifier: str) -> StoredGlossary | None:
        """Return a glossary of an owner."""
        rows = self._database.read(f"{_COLUMNS} owner = ? AND id = ?", owner, identifier)
        return _read(rows[0]) if rows else None

    def change(
        self, owner: str, identifier: str, change: Callable[[StoredGlossary], StoredGlossary]
    ) -> StoredGlossary | None:
        """Store what `change` returns for a glossary of an owner, if there is one, and return it.

        Changes of several processes follow each other.  Raises UsageError as `add` does.
        """
        with self._database.transaction() as connection:
            rows = connection.execute(f"{_COLUMNS} owner = ? AND id = ?", (owner, identifier)).fetchall()
            if not rows:
                return None
            changed = change(_read(rows[0]))
            text = _written(changed.dictionaries)
            _check_room(connection, owner, identifier, text)
            statement = "UPDATE multilingual_glossaries SET name = ?, dictionaries = ? WHERE id = ?"
            connection.execute(statement, (changed.name, text, identifier))
        return changed

    def delete(self, owner: str, identifier: str) -> bool:
        """Delete a glossary; return whether the owner had it."""
        statement = "DELETE FROM multilingual_glossaries WHERE owner = ? AND id = ?"
        return self._database.write(statement, owner, identifier) > 0

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _check_room(connection: sqlite3.Connection, owner: str, identifier: str, text: str) -> None:
    """Raise UsageError if a glossary exceeds the limits, together with all glossaries of other identifiers."""
    query = (
        "SELECT count(*), coalesce(sum(length(CAST(dictionaries AS BLOB))), 0) FROM multilingual_glossaries "
        "WHERE id != ?"
    )
    count, size = connection.execute(f"{query} AND owner = ?", (identifier, owner)).fetchone()
    _, of_all = connection.execute(query, (identifier,)).fetchone()
    new = len(text.encode())
    if count >= _MOST:
        raise UsageError(f"{_MOST:,} glossaries are stored already; delete some first")
    if size + new > _MOST_BYTES:
        raise UsageError(f"glossaries with more than {_MOST_BYTES >> 20} MiB of entries; delete some first")
    if of_all + new > _MOST_BYTES_OF_ALL:
        raise UsageError(
            f"the glossaries of all users have reached the limit of {_MOST_BYTES_OF_ALL >> 20} MiB; "
            "contact the operator of the server"
        )


def _written(dictionaries: Dictionaries) -> str:
    rows: list[Any] = [[*languages, entries] for languages, entries in dictionaries.items()]
    return json.dumps(rows, ensure_ascii=False)


def _read(row: tuple[str, str, str, str]) -> StoredGlossary:
    identifier, name, text, created = row
    dictionaries = {(source, target): entries for source, target, entries in json.loads(text)}
    return StoredGlossary(identifier, name, dictionaries, created)
