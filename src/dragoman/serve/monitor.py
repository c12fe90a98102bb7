"""What happens to requests: metrics, a log, and the refusal of new ones while the server stops."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.decoding.service import Search
from dragoman.serve.answers import error_key
from dragoman.serve.directions import Directions

__all__ = ["LOG", "Monitor", "MonitoredApp"]

LOG = logging.getLogger("dragoman.requests")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ALWAYS = {"/livez", "/readyz", "/metrics"}
"""Routes that are answered while the server stops."""


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


class MonitoredApp:
    """An application whose requests are counted, measured and, if `LOG` is enabled, logged without their texts.

    paths: routes with a label of their own in metrics and log.
    """

    def __init__(self, app: ASGIApp, monitor: Monitor, paths: Sequence[str]) -> None:
        self.app, self.monitor, self.paths = app, monitor, frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        monitor, path = self.monitor, scope["path"]
        begun, status = time.monotonic(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        app = _stopping if monitor.draining and path not in _ALWAYS else self.app
        monitor.active += 1
        try:
            await app(scope, receive, noted)
        finally:
            monitor.active -= 1
            route, seconds = path if path in self.paths else "other", time.monotonic() - begun
            monitor.requests.labels(route, status).inc()
            monitor.seconds.labels(route).observe(seconds)
            if LOG.isEnabledFor(logging.INFO):
                _log(scope["method"], route, status, seconds)


def _log(method: str, route: str, status: int, seconds: float) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"time": now, "method": method, "route": route, "status": status, "seconds": round(seconds, 4)}
    LOG.info(json.dumps(entry))


async def _stopping(scope: Scope, receive: Receive, send: Send) -> None:
    message = "the server is stopping; send the request again"
    await JSONResponse({error_key(scope["path"]): message}, 503, {"Retry-After": "1", "Connection": "close"})(
        scope, receive, send
    )
