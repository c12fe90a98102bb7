"""API keys and their use, in SQLite."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dragoman.errors import UsageError
from dragoman.serve.database import Database, DatabaseError

_TABLES = (
    "CREATE TABLE IF NOT EXISTS keys (id TEXT PRIMARY KEY, hash TEXT UNIQUE NOT NULL, name TEXT NOT NULL, "
    "per_minute INTEGER, characters INTEGER, created TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS usage (key TEXT NOT NULL, month TEXT NOT NULL, characters INTEGER NOT NULL, "
    "PRIMARY KEY (key, month))",
)


@dataclass(frozen=True)
class ApiKey:
    """A key without its secret.

    per_minute: requests.  characters: of source text per calendar month (UTC).  None = unlimited.  used: characters of
    this month.  created: ISO 8601 in UTC.
    """

    id: str
    name: str
    per_minute: int | None
    characters: int | None
    created: str
    used: int = 0


class KeyStore:
    """API keys, stored by the SHA-256 of their secrets; a secret has 256 random bits, so its hash needs no salt.

    Several processes may use the same file: a key that one of them adds or revokes is known to the others at once.
    Raises UsageError for a file that is not a database of keys.
    """

    def __init__(self, path: Path | None, create: bool = True) -> None:
        self._database = Database(path, *_TABLES, create=create)
        self._unsaved: Counter[str] = Counter()
        self._counting = threading.Lock()  # not held while the database is written

    def add(self, name: str, per_minute: int | None = None, characters: int | None = None) -> tuple[ApiKey, str]:
        """Create a key; return it and its secret, which is not stored.  Raises UsageError for an invalid name."""
        if not name.strip() or len(name) > 200:
            raise UsageError(f"name = {name!r:.60}; accepted: 1 to 200 characters")
        key = ApiKey(secrets.token_hex(4), name.strip(), per_minute, characters, datetime.now(UTC).isoformat())
        secret = secrets.token_urlsafe(32)
        values = key.id, _hash(secret), key.name, per_minute, characters, key.created
        self._database.write("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?)", *values)
        return key, secret

    def all(self) -> list[ApiKey]:
        """Return all keys, oldest first."""
        return self._select("TRUE ORDER BY created, id")

    def find(self, secret: str) -> ApiKey | None:
        """Return the key with a secret."""
        return next(iter(self._select("hash = ?", _hash(secret))), None)

    def revoke(self, identifier: str) -> bool:
        """Delete a key with its use; return whether it existed."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM usage WHERE key = ?", (identifier,))
            return connection.execute("DELETE FROM keys WHERE id = ?", (identifier,)).rowcount > 0

    def charge(self, identifier: str, characters: int) -> None:
        """Add to the use of a key; `save` writes it."""
        with self._counting:
            self._unsaved[identifier] += characters

    def save(self) -> None:
        """Write the use since the last call.  Raises DatabaseError, and keeps it for the next call."""
        with self._counting:
            unsaved, self._unsaved = self._unsaved, Counter()
        if not unsaved:
            return
        rows = [(_month(), characters, identifier) for identifier, characters in unsaved.items()]
        try:
            with self._database.transaction() as connection:
                connection.executemany(
                    "INSERT INTO usage SELECT id, ?, ? FROM keys WHERE id = ? "
                    "ON CONFLICT (key, month) DO UPDATE SET characters = characters + excluded.characters",
                    rows,
                )
        except DatabaseError:
            with self._counting:
                self._unsaved.update(unsaved)
            raise

    def close(self) -> None:
        """Write the use, and close the database."""
        self.save()
        self._database.close()

    def _select(self, condition: str, *values: str) -> list[ApiKey]:
        query = (
            "SELECT id, name, per_minute, keys.characters, created, coalesce(usage.characters, 0) FROM keys "
            f"LEFT JOIN usage ON usage.key = keys.id AND usage.month = ? WHERE {condition}"
        )
        rows = self._database.read(query, _month(), *values)
        return [
            ApiKey(identifier, name, per_minute, characters, created, used + self._unsaved[identifier])
            for identifier, name, per_minute, characters, created, used in rows
        ]


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _month() -> str:
    return datetime.now(UTC).strftime("%Y-%m")
