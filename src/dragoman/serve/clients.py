"""Who sends a request: the check of API keys and of their limits."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass

from starlette.requests import Request

from dragoman.serve.admission import Overloaded
from dragoman.serve.keys import ApiKey, KeyStore
from dragoman.serve.requests import BadRequest, header

__all__ = ["Client", "Clients", "QuotaExceeded"]


class QuotaExceeded(Exception):
    """The characters of a key for this month are used up."""

    def __init__(self) -> None:
        super().__init__("Quota exceeded: the characters of this key for the current month are used up")


@dataclass(frozen=True)
class Client:
    """The sender of a request.

    name: clients with different names share the machine equally.  owner: of stored glossaries.  key: if it is known.
    """

    name: str
    owner: str
    key: ApiKey | None = None


class Clients:
    """Identifies clients, and applies the limits of their keys.

    store: None = keys are not checked, and only distinguish clients.  required: whether requests need a key.
    """

    def __init__(self, store: KeyStore | None = None, required: bool = False) -> None:
        self.store, self.required = store, required and store is not None
        self._recent: dict[str, _Bucket] = {}
        self._anonymous = 0

    def identify(self, request: Request, parameter: object = None, missing: int = 400) -> Client:
        """Return the sender of a request.

        parameter: the key, if it is a parameter of the interface; otherwise it is in the header `Authorization`.
        Raises BadRequest with the status `missing` if a key is required, and with 403 for an unknown key.
        """
        secret = str(parameter or "") or _header_key(request)
        address = request.client.host if request.client else ""
        if not secret and self.required:
            raise BadRequest("Please contact the server operator to get an API key", missing)
        if not secret:
            return Client(address, address)
        if self.store is None:
            return Client(address, f"key {hashlib.sha256(secret.encode('utf-8', 'replace')).hexdigest()}")
        key = self.store.find(secret)
        if key is None:
            raise BadRequest("Invalid API key", 403)
        return Client(f"key {key.id}", f"key {key.id}", key)

    def accept(self, client: Client, characters: int) -> None:
        """Apply the limits of a key to a request.  Raises Overloaded and QuotaExceeded."""
        key = client.key
        if key is None:
            return
        if key.characters is not None and key.used + characters > key.characters:
            raise QuotaExceeded
        if key.per_minute is not None:
            self._recent.setdefault(key.id, _Bucket(key.per_minute)).take(key.per_minute)

    def charge(self, client: Client, characters: int) -> None:
        """Count translated characters."""
        if client.key is None or self.store is None:
            self._anonymous += characters
        else:
            self.store.charge(client.key.id, characters)

    def used(self, client: Client) -> int:
        """Return the characters of the key of a client in this month, or of all requests without a key."""
        return self._anonymous if client.key is None else client.key.used

    def save(self) -> None:
        """Write the use of keys to the database."""
        if self.store is not None:
            self.store.save()

    def close(self) -> None:
        """Close the database."""
        if self.store is not None:
            self.store.close()


class _Bucket:
    """A token bucket: at most `per_minute` requests at once, refilled evenly within a minute."""

    def __init__(self, per_minute: int) -> None:
        self._left, self._since = float(per_minute), time.monotonic()

    def take(self, per_minute: int) -> None:
        """Count a request.  Raises Overloaded."""
        now = time.monotonic()
        self._left = min(float(per_minute), self._left + (now - self._since) * per_minute / 60)
        self._since = now
        if self._left < 1:
            raise Overloaded(math.ceil((1 - self._left) * 60 / per_minute), "the key has too many requests per minute")
        self._left -= 1


def _header_key(request: Request) -> str:
    scheme, _, key = header(request, b"authorization").partition(" ")
    return key.strip() if scheme.lower() in ("deepl-auth-key", "bearer") else ""
