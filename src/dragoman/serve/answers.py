"""Answers to requests: JSON for results, and for every kind of error the status and message of an interface."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.errors import DataError, DragomanError, UsageError
from dragoman.serve.admission import Overloaded
from dragoman.serve.clients import QuotaExceeded
from dragoman.serve.requests import BadRequest, Disconnected

__all__ = ["INTERNAL_ERROR", "ErrorFormat", "answered", "error_key"]

_LOG = logging.getLogger(__name__)
INTERNAL_ERROR = "internal error; this is a bug in Dragoman"


def error_key(path: str) -> str:
    """Return the key of error messages in the interface of a route."""
    return "message" if path.startswith("/v2/") else "error"


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


def answered(
    handler: Callable[[Request], Awaitable[Any]], errors: ErrorFormat, status: int = 200
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers with JSON and `status`, and in the format `errors` for exceptions."""

    async def endpoint(request: Request) -> Response:
        try:
            answer = await handler(request)
        except BadRequest as error:
            return errors.answer(error.message, error.status, error.headers)
        except Overloaded as error:
            return errors.answer(str(error), 429, {"Retry-After": str(error.seconds)}, errors.overload)
        except QuotaExceeded as error:
            return errors.answer(str(error), errors.quota)
        except Disconnected:
            return Response(status_code=499)  # nobody reads it
        except (UsageError, DataError) as error:
            return errors.answer(str(error), 400, prefix=errors.invalid)
        except DragomanError as error:
            _LOG.error("translation failed: %s", error)
            return errors.answer(str(error), 500, prefix=errors.failure)
        except Exception:
            _LOG.exception("%s %s failed", request.method, request.scope["route"].path)
            return errors.answer(INTERNAL_ERROR, 500)
        return answer if isinstance(answer, Response) else JSONResponse(answer, status)

    return endpoint
