"""Which requests are accepted, and how the sentences of a request are ranked among those of others."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Admission", "Overloaded", "Ticket"]

_MEASURED = 1.0
"""Seconds over which the speed is averaged."""


class Overloaded(Exception):
    """More work is requested than is accepted.  seconds: after which the client may try again."""

    def __init__(self, seconds: float, reason: str = "the server is busy") -> None:
        self.seconds = max(1, math.ceil(seconds))
        super().__init__(f"{reason}; try again in {self.seconds} s")


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
