"""What every request passes first: the check of its host name, metrics, log, and headers for pages of other origins."""

from __future__ import annotations

import json
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.decoding.service import Search
from dragoman.serve.directions import Directions
from dragoman.serve.http import error_key

LOG = logging.getLogger("dragoman.requests")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class _Histogram(Collector):
    """A histogram of any number of series, which takes a quarter of the time of `prometheus_client.Histogram`."""

    def __init__(
        self, name: str, description: str, bounds: Sequence[float], registry: CollectorRegistry, label: str = ""
    ) -> None:
        self._about, self._bounds, self._labels = (f"dragoman_{name}", description), bounds, [label] if label else []
        self._series: dict[str, tuple[list[int], list[float]]] = {} if label else {"": self._empty()}
        self._lock = threading.Lock()
        registry.register(self)

    def observe(self, value: float, label: str = "") -> None:
        """Count a value.  label: of its series, "" if there is one series only."""
        with self._lock:
            series = self._series.get(label)
            if series is None:
                series = self._series[label] = self._empty()
            series[0][bisect_left(self._bounds, value)] += 1
            series[1][0] += value

    def _empty(self) -> tuple[list[int], list[float]]:
        """Return the counts of the buckets, the last one for larger values, and the sum of a new series."""
        return [0] * (len(self._bounds) + 1), [0.0]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the series for `generate_latest`."""
        family = HistogramMetricFamily(*self._about, labels=self._labels)
        with self._lock:
            copied = {label: (list(accumulate(counts)), total[0]) for label, (counts, total) in self._series.items()}
        for label, (counts, total) in copied.items():
            bounds = [*map(str, map(float, self._bounds)), "+Inf"]
            family.add_metric([label] if self._labels else [], list(zip(bounds, counts, strict=True)), total)
        yield family


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
        self.seconds = _Histogram("request_seconds", "Time to the answer", _BUCKETS, self._registry, "route")
        queued = _Histogram("queue_seconds", "Time that searches waited for free rows", _BUCKETS, self._registry)
        computed = _Histogram("search_seconds", "Time of searches without waiting", _BUCKETS, self._registry)
        rows = _Histogram("batch_rows", "Hypotheses decoded together, at the end of a search", _ROWS, self._registry)
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
        memory, cache = directions.memory, directions.cache
        for name, description, value in (
            ("loaded_models", "Models in memory", lambda: len(memory.loaded)),
            ("model_bytes", "Weights of the models in memory", lambda: memory.bytes),
            ("cache_bytes", "Translations in the cache", lambda: cache.bytes),
        ):
            Gauge(name, description, **named).set_function(value)
        texts = Counter("cache_texts", "Texts that were looked up in the cache", ["result"], **named)
        hits, misses = texts.labels("hit"), texts.labels("miss")
        cache.observe = lambda hit: (hits if hit else misses).inc()
        memory.observe = Counter("model_loads", "Models that were loaded, again or for the first time", **named).inc

        self._counted: dict[tuple[str, int], Counter] = {}

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request and its time.  route: its path, or "other"."""
        counter = self._counted.get((route, status))
        if counter is None:
            counter = self._counted[route, status] = self.requests.labels(route, status)
        counter.inc()
        self.seconds.observe(seconds, route)

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._registry)


_ALWAYS = {"/livez", "/readyz", "/metrics"}
"""Routes that are answered while the server stops."""
_ANY_ORIGIN = (b"access-control-allow-origin", b"*")


class Gateway:
    """Middleware of the server, in one layer, because each layer takes a noticeable share of a short request.

    It refuses unknown host names (against DNS rebinding) and, while the server stops, new requests; it counts, measures
    and, if `LOG` is enabled, logs requests without their texts; and it permits pages of all origins to use the answers.
    Routes with a fixed path are called here, without a search through all routes.

    hosts: accepted host names; "*" for any, "*.example.org" for those of a domain.  routes: their paths are labels of
    metrics and log.
    """

    def __init__(self, app: ASGIApp, monitor: Monitor, hosts: Sequence[str], routes: Sequence[Route]) -> None:
        self.app, self.monitor = app, monitor
        self.routes = {route.path: route for route in routes if "{" not in route.path}
        self.is_accepted = lru_cache(maxsize=1000)(lambda host: is_accepted_host(host, hosts))

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
                message["headers"] = [*message.get("headers", ()), _ANY_ORIGIN]
            await send(message)

        monitor.active += 1
        try:
            refusal = self._refusal(scope)
            route = self.routes.get(path)
            if refusal is not None:
                await refusal(scope, receive, noted)
            elif route is not None and route.methods and scope["method"] in route.methods:
                scope["route"] = route
                response = await route.endpoint(Request(scope, receive, noted))
                await response(scope, receive, noted)
            else:
                await self.app(scope, receive, noted)
        finally:
            monitor.active -= 1
            label, seconds = path if path in self.routes else "other", time.monotonic() - begun
            monitor.count(label, status, seconds)
            if LOG.isEnabledFor(logging.INFO):
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                entry = {"time": now, "method": scope["method"], "route": label, "status": status}
                LOG.info(json.dumps(entry | {"seconds": round(seconds, 4)}))

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer of requests that are not passed on."""
        headers = scope["headers"]
        host = next((value for name, value in headers if name == b"host"), b"")
        if not self.is_accepted(host):
            return PlainTextResponse("Invalid host header", 400)
        if scope["method"] == "OPTIONS" and any(name == b"access-control-request-method" for name, _ in headers):
            # A browser asks whether a page may send a request: any method and header (CORS).
            wanted = next((value for name, value in headers if name == b"access-control-request-headers"), b"")
            allowed = {
                "access-control-allow-methods": "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT",
                "access-control-max-age": "600",
            }
            if wanted:
                allowed["access-control-allow-headers"] = wanted.decode("latin-1")
                allowed["vary"] = "access-control-request-headers"
            return PlainTextResponse("OK", headers=allowed)
        if self.monitor.draining and scope["path"] not in _ALWAYS:
            message = "the server is stopping; send the request again"
            return JSONResponse({error_key(scope["path"]): message}, 503, {"Retry-After": "1", "Connection": "close"})
        return None


def is_accepted_host(header: bytes, hosts: Sequence[str]) -> bool:
    """Return whether the header `Host`, a name with or without a port, matches one of `hosts`."""
    text = header.decode("latin-1").lower()
    name = text[: text.find("]") + 1] if text.startswith("[") else text.partition(":")[0]
    return any(
        host in ("*", name) or (host.startswith("*.") and name.endswith(host[1:])) for host in map(str.lower, hosts)
    )
