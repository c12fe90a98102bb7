"""The metrics and the log of requests."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dragoman.decoding.service import Search
from dragoman.serve.directions import Directions

__all__ = ["LOG", "Monitor", "log_request"]

LOG = logging.getLogger("dragoman.requests")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Monitor:
    """Prometheus metrics, and the state of the server; labels never hold anything of a client.

    active: requests in progress.  draining: whether new requests are refused, because the server stops.  loading:
    whether the models are being loaded for the first time.
    """

    def __init__(self, directions: Directions) -> None:
        self.active, self.draining, self.loading = 0, False, False
        self._registry = CollectorRegistry()
        named: dict[str, Any] = {"registry": self._registry, "namespace": "dragoman"}
        self.requests = Counter("requests", "Requests", ["route", "status"], **named)
        self.seconds = Histogram("request_seconds", "Time to the answer", ["route"], buckets=_BUCKETS, **named)
        queued = Histogram("queue_seconds", "Time that searches waited for free rows", buckets=_BUCKETS, **named)
        computed = Histogram("search_seconds", "Time of searches without waiting", buckets=_BUCKETS, **named)
        rows = Histogram("batch_rows", "Hypotheses decoded together, at the end of a search", buckets=_ROWS, **named)
        waiting = Gauge("waiting_sentences", "Sentences that wait for free rows", **named)
        active = Gauge("active_rows", "Hypotheses that are being decoded", **named)
        tokens = Gauge("accepted_tokens", "Estimated source tokens of the requests in progress", **named)
        waiting.set_function(lambda: directions.load()[0])
        active.set_function(lambda: directions.load()[1])
        tokens.set_function(lambda: directions.admission.tokens)

        def observe(search: Search) -> None:
            queued.observe(search.queued)
            computed.observe(search.computed)
            rows.observe(search.rows)

        directions.observe(observe)
        _add_model_metrics(directions, named)

        self._counted: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request and its time.  route: its path, or "other"."""
        found = self._counted.get((route, status))
        if found is None:
            found = self._counted[route, status] = self.requests.labels(route, status), self.seconds.labels(route)
        found[0].inc()
        found[1].observe(seconds)

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)


def _add_model_metrics(directions: Directions, named: dict[str, Any]) -> None:
    memory, cache = directions.memory, directions.cache
    for name, description, value in (
        ("loaded_models", "Models in memory", lambda: len(memory.loaded)),
        ("model_bytes", "Weights of the models in memory", lambda: memory.bytes),
        ("cache_bytes", "Translations in the cache", lambda: cache.bytes),
    ):
        Gauge(name, description, **named).set_function(value)
    texts = Counter("cache_texts", "Texts that were looked up in the cache", ["result"], **named)
    found, missing = texts.labels("hit"), texts.labels("miss")
    cache.observe = lambda hit: (found if hit else missing).inc()
    loads = Counter("model_loads", "Models that were loaded, again or for the first time", **named)
    memory.observe = loads.inc


def log_request(method: str, route: str, status: int, seconds: float) -> None:
    """Log a request as a JSON object; route: its path, or "other"."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"time": now, "method": method, "route": route, "status": status, "seconds": round(seconds, 4)}
    LOG.info(json.dumps(entry))
