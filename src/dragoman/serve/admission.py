"""Which requests are accepted: API keys with their limits, and the work that waits, ranked fairly among clients."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from dragoman.serve.database import ApiKey, KeyStore
from dragoman.serve.http import BadRequest, Overloaded, QuotaExceeded, header

_MEASURED = 1.0
"""Seconds over which the speed is averaged."""


@dataclass
class Ticket:
    """An accepted request.

    share: number of requests of the same client; each advances at the reciprocal rate.  before: source tokens of the
    request that precede the next sentences.  admission: that accepted the request.
    """

    client: str
    tokens: int
    share: int
    admission: Admission = field(repr=False, compare=False)
    before: int = 0

    def ranks(self, sources: Sequence[Sequence[int]]) -> list[float]:
        """Return the ranks of the next sentences of the request (see `SearchService.submit`)."""
        ranks, before = [], self.before
        for source in sources:
            ranks.append(float(self.share * before))
            before += len(source)
        return ranks


class Admission:
    """Limits the work that waits; one event loop uses it.

    max_tokens: source tokens of all accepted requests.  A request is accepted if nothing waits, whatever its size.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.tokens = 0
        self.requests: Counter[str] = Counter()
        self.total_rate = 0.0
        """Sum of the rates of all accepted requests; that of a request is 1 / `Ticket.share`."""
        self._speed = 0.0  # tokens per second
        self._since, self._finished = time.monotonic(), 0

    def check(self, tokens: int) -> None:
        """Raise Overloaded if a request of so many tokens would not be accepted now."""
        if self.tokens and self.tokens + tokens > self.max_tokens:
            raise Overloaded((self.tokens + tokens - self.max_tokens) / self._speed if self._speed else 1.0)

    def accept(self, client: str, tokens: int) -> Ticket:
        """Register a request.  Raises Overloaded."""
        self.check(tokens)
        self.tokens += tokens
        self.requests[client] += 1
        share = self.requests[client]
        self.total_rate += 1 / share
        return Ticket(client, tokens, share, self)

    def finish(self, ticket: Ticket) -> None:
        """Remove a request, completed or not."""
        self.tokens -= ticket.tokens
        self.total_rate -= 1 / ticket.share
        self.requests[ticket.client] -= 1
        if not self.requests[ticket.client]:
            del self.requests[ticket.client]
        if not self.requests:
            self.total_rate = 0.0  # discards accumulated rounding errors
        self._finished += ticket.tokens
        elapsed = time.monotonic() - self._since
        if elapsed >= _MEASURED:
            speed = self._finished / elapsed
            self._speed = (self._speed + speed) / 2 if self._speed else speed
            self._since, self._finished = time.monotonic(), 0


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
        secret = str(parameter or "")
        if not secret:
            scheme, _, key = header(request, b"authorization").partition(" ")
            secret = key.strip() if scheme.lower() in ("deepl-auth-key", "bearer") else ""
        address = request.client.host if request.client else ""
        if not secret and self.required:
            raise BadRequest("Please contact the server operator to get an API key", missing)
        if not secret:
            return Client(address, address)
        if self.store is None:
            return Client(address, f"key {hashlib.sha256(secret.encode('utf-8', 'replace')).hexdigest()}")
        known = self.store.find(secret)
        if known is None:
            raise BadRequest("Invalid API key", 403)
        return Client(f"key {known.id}", f"key {known.id}", known)

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
