"""What every request passes first: the check of its host name, metrics, log, and headers for pages of other origins."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serve.directions import Directions
from dragoman.serve.http import error_key
from dragoman.serve.search.service import Search

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
        self.registry = CollectorRegistry()
        named: dict[str, Any] = {"registry": self.registry, "namespace": "dragoman"}
        self.requests = Counter("requests", "Requests", ["route", "status"], **named)
        self.seconds = _Histogram("request_seconds", "Time to the answer", _BUCKETS, self.registry, "route")
        queued = _Histogram("queue_seconds", "Time that searches waited for free rows", _BUCKETS, self.registry)
        computed = _Histogram("search_seconds", "Time of searches without waiting", _BUCKETS, self.registry)
        rows = _Histogram("batch_rows", "Hypotheses decoded together, at the end of a search", _ROWS, self.registry)

        def observe(search: Search) -> None:
            queued.observe(search.queued)
            computed.observe(search.computed)
            rows.observe(search.rows)

        directions.observe(observe)
        memory, cache = directions.memory, directions.cache
        for name, description, value in (
            ("waiting_sentences", "Sentences that wait for free rows", lambda: directions.load()[0]),
            ("active_rows", "Hypotheses that are being decoded", lambda: directions.load()[1]),
            ("accepted_tokens", "Source tokens of the requests in progress", lambda: directions.admission.tokens),
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


_ALWAYS = {"/livez", "/readyz", "/metrics"}
"""Routes that are answered while the server stops."""
_ANY_ORIGIN = (b"access-control-allow-origin", b"*")
MAX_HEADERS = 64 << 10
"""Bytes of the address and the headers of a request."""


class Gateway:
    """Middleware of the server, in one layer, because each layer takes a noticeable share of a short request.

    It refuses unknown host names (against DNS rebinding), web pages of origins that are not permitted, large headers
    and, while the server stops, new requests; it counts, measures and, if `LOG` is enabled, logs requests without their
    texts; and it permits pages of other origins to use the answers.  Routes with a fixed path are called here, without
    a search through all routes.

    hosts: accepted host names; "*" for any, "*.example.org" for those of a domain.  origins: of pages that may use the
    server beside its own, "*" for any.  routes: their paths are labels of metrics and log.
    """

    def __init__(
        self, app: ASGIApp, monitor: Monitor, hosts: Sequence[str], origins: Sequence[str], routes: Sequence[Route]
    ) -> None:
        self.app, self.monitor = app, monitor
        self.routes = {route.path: route for route in routes if "{" not in route.path}
        self.is_accepted = lru_cache(maxsize=1000)(lambda host: is_accepted_host(host, hosts))
        self.permits_all, self.origins = "*" in origins, {origin.lower().encode() for origin in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        monitor, path, headers = self.monitor, scope["path"], dict(scope["headers"])
        begun, status = time.monotonic(), 500
        shared: list[tuple[bytes, bytes]] = [_ANY_ORIGIN] if self.permits_all else []
        origin = headers.get(b"origin", b"")
        if origin.lower() in self.origins:
            shared = [(_ANY_ORIGIN[0], origin), (b"vary", b"origin")]

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *shared]
            await send(message)

        monitor.active += 1
        try:
            refusal = self._refusal(scope, headers, bool(shared))
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

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes], is_shared: bool) -> Response | None:
        """Return the answer of requests that are not passed on.  is_shared: whether its origin is permitted."""
        received, host, key = scope["headers"], headers.get(b"host", b""), error_key(scope["path"])
        is_repeated = len(headers) < len(received) and [name for name, _ in received].count(b"host") > 1
        if is_repeated or not self.is_accepted(host):
            return PlainTextResponse("Invalid host header", 400)
        address = len(scope["path"]) + len(scope["query_string"])
        size = address + sum(map(len, chain.from_iterable(received)))
        if size > MAX_HEADERS:
            message = f"address and headers have {size:,} bytes; accepted: {MAX_HEADERS:,}; send texts in the body"
            return JSONResponse({key: message}, 431, {"Connection": "close"})
        origin = headers.get(b"origin")
        if origin is not None and not is_shared:
            # A browser sends the origin of the page with all requests that change something, forms among them.
            is_own = headers.get(b"sec-fetch-site") == b"same-origin" or origin.lower().endswith(b"://" + host.lower())
            if not is_own:
                name = origin.decode("latin-1")[:80]
                message = f"pages of {name} may not use this server; its operator can permit them (--allowed-origin)"
                return JSONResponse({key: message}, 403)
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            # A browser asks whether a page may send a request: any method and header (CORS).
            allowed = {
                "access-control-allow-methods": "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT",
                "access-control-max-age": "600",
            }
            if wanted := headers.get(b"access-control-request-headers"):
                allowed["access-control-allow-headers"] = wanted.decode("latin-1")
                allowed["vary"] = "access-control-request-headers"
            return PlainTextResponse("OK", headers=allowed)
        if self.monitor.draining and scope["path"] not in _ALWAYS:
            message = "the server is stopping; send the request again"
            return JSONResponse({key: message}, 503, {"Retry-After": "1", "Connection": "close"})
        return None


_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]*)?")


def is_accepted_host(header: bytes, hosts: Sequence[str]) -> bool:
    """Return whether the header `Host`, a name with or without a port, matches one of `hosts`."""
    found = _HOST.fullmatch(header.decode("latin-1").lower())
    name = found[1] if found else None
    known = map(str.lower, hosts)
    return any(host in ("*", name) or (name and host[:2] == "*." and name.endswith(host[1:])) for host in known)
