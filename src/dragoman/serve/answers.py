"""Answers to requests: JSON for results, and for every kind of error the status and message of an interface."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.errors import DataError, DragomanError, UsageError
from dragoman.serve.admission import Overloaded
from dragoman.serve.clients import QuotaExceeded
from dragoman.serve.database import DatabaseBusy
from dragoman.serve.requests import BadRequest, Disconnected

__all__ = ["INTERNAL_ERROR", "ErrorFormat", "answered", "error_key"]

_LOG = logging.getLogger(__name__)
INTERNAL_ERROR = "internal error; this is a bug in Dragoman"


def error_key(path: str) -> str:
    """Return the key of error messages in the interface of a route."""
    return "message" if path.startswith(("/v2/", "/v3/")) else "error"


@dataclass(frozen=True)
class ErrorFormat:
    """Errors as {key: message}, with a prefix for messages about overload, invalid requests and failures.

    quota: status if the characters of an API key are used up.
    """

    key: str
    quota: int
    overload: str = ""
    invalid: str = ""
    failure: str = ""

    def answer(
        self, message: str, status: int, headers: dict[str, str] | None = None, prefix: str = ""
    ) -> JSONResponse:
        """Return an answer with a message."""
        return JSONResponse({self.key: prefix + message}, status, headers)

    def answer_to(self, error: Exception, request: Request) -> Response:
        """Return the answer to a request that ended with an exception."""
        match error:
            case BadRequest():
                return self.answer(error.message, error.status, error.headers)
            case Overloaded():
                return self.answer(str(error), 429, {"Retry-After": str(error.seconds)}, self.overload)
            case QuotaExceeded():
                return self.answer(str(error), self.quota)
            case DatabaseBusy():
                _LOG.error("the database cannot be used: %s", error)
                return self.answer("the database is busy; try again", 503, {"Retry-After": "1"})
            case Disconnected():
                return Response(status_code=499)  # nobody reads it
            case UsageError() | DataError():
                return self.answer(str(error), 400, prefix=self.invalid)
            case DragomanError():
                _LOG.error("translation failed: %s", error)
                return self.answer(str(error), 500, prefix=self.failure)
        _LOG.error("%s %s failed", request.method, request.scope["route"].path, exc_info=error)
        return self.answer(INTERNAL_ERROR, 500)


class _Answer(Response):
    """A `JSONResponse` that takes less time: it shares its encoder, and its headers are fixed."""

    _encode = staticmethod(json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode)

    def __init__(self, content: Any, status: int) -> None:
        self.status_code, self.background = status, None
        self.body = self._encode(content).encode("utf-8")
        length = (b"content-length", b"%d" % len(self.body))
        self.raw_headers = [length, (b"content-type", b"application/json")]


def answered(
    handler: Callable[[Request], Awaitable[Any]], errors: ErrorFormat, status: int = 200
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers with JSON and `status`, and in the format `errors` for exceptions."""

    async def endpoint(request: Request) -> Response:
        try:
            answer = await handler(request)
        except Exception as error:
            return errors.answer_to(error, request)
        return answer if isinstance(answer, Response) else _Answer(answer, status)

    return endpoint
