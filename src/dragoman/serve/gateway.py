"""What every request passes first: the check of its host name, metrics, and headers for pages of other origins."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import lru_cache

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serve.answers import error_key
from dragoman.serve.monitor import LOG, Monitor, log_request

__all__ = ["Gateway"]

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
        self.routes = {route.path: route for route in routes}
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
                log_request(scope["method"], label, status, seconds)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer of requests that are not passed on."""
        headers = scope["headers"]
        host = next((value for name, value in headers if name == b"host"), b"")
        if not self.is_accepted(host):
            return PlainTextResponse("Invalid host header", 400)
        if scope["method"] == "OPTIONS" and any(name == b"access-control-request-method" for name, _ in headers):
            return _preflight(headers)
        if self.monitor.draining and scope["path"] not in _ALWAYS:
            message = "the server is stopping; send the request again"
            return JSONResponse({error_key(scope["path"]): message}, 503, {"Retry-After": "1", "Connection": "close"})
        return None


def _preflight(headers: Sequence[tuple[bytes, bytes]]) -> Response:
    """Answer the question of a browser whether a page may send a request: any method and header (CORS)."""
    wanted = next((value for name, value in headers if name == b"access-control-request-headers"), b"")
    allowed = {
        "access-control-allow-methods": "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT",
        "access-control-max-age": "600",
    }
    if wanted:
        allowed |= {"access-control-allow-headers": wanted.decode("latin-1"), "vary": "access-control-request-headers"}
    return PlainTextResponse("OK", headers=allowed)


def is_accepted_host(header: bytes, hosts: Sequence[str]) -> bool:
    """Return whether the header `Host`, a name with or without a port, matches one of `hosts`."""
    text = header.decode("latin-1").lower()
    name = text[: text.find("]") + 1] if text.startswith("[") else text.partition(":")[0]
    return any(
        host in ("*", name) or (host.startswith("*.") and name.endswith(host[1:])) for host in map(str.lower, hosts)
    )
