"""The pages of a server and their files: the one that translates, and the viewer, which shows a search step by step."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dragoman.errors import nearest
from dragoman.pages.page import plain, read_assets, render
from dragoman.serve.admission import Clients
from dragoman.serve.directions import Directions, estimated_tokens
from dragoman.serve.http import BadRequest, Disconnected, ErrorFormat, Limits, answered, header, read_body, too_slow
from dragoman.serve.models import Direction, Slot
from dragoman.serve.streaming import answer_in_pieces

if TYPE_CHECKING:
    from dragoman.serve.viewer import ViewedModel  # imports torch, which the server does not need

TRANSLATE_STYLES = ("colors.css", "page.css", "language.css", "translate.css", "translate_tools.css")
TRANSLATE_SCRIPTS = (
    "page.js", "language.js", "translate_languages.js", "translate_requests.js", "translate_result.js",
    "translate_glossary.js", "translate_files.js", "translate_suggest.js", "translate.js",
)  # fmt: skip
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Headers of pages and their files: nothing is loaded from elsewhere, and no other page embeds them."""


def page_routes(prefix: str, page: Callable[[], str], styles: Sequence[str], scripts: Sequence[str]) -> list[Route]:
    """Return the routes of a page, at `prefix` and a slash, and of its files.  page: returns its HTML."""

    def html(request: Request) -> Response:
        return HTMLResponse(page(), headers=HEADERS)

    def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in styles and name not in scripts:
            return PlainTextResponse("Not Found", 404, HEADERS)
        return Response(read_assets(name), headers=HEADERS, media_type=TYPES[PurePosixPath(name).suffix])

    return [Route(f"{prefix}/", html), Route(f"{prefix}/web/{{name}}", file)]


def translation_page(limits: Limits, with_viewer: bool) -> list[Route]:
    """Return the routes of the page that translates.  with_viewer: link to the viewer at /viewer/."""

    @functools.cache
    def page() -> str:  # rendered at the first request, because it imports jinja2
        files: Any = {"styles": TRANSLATE_STYLES, "scripts": TRANSLATE_SCRIPTS}
        return render("translate.html", **files, viewer=with_viewer, most_bytes=limits.body)

    return page_routes("", page, TRANSLATE_STYLES, TRANSLATE_SCRIPTS)


VIEWER_STYLES = ("colors.css", "page.css", "language.css", "maps.css", "figure.css", "serve.css")
VIEWER_SCRIPTS = (
    "page.js", "language.js", "packing.js", "maps.js", "figure.js", "serve_stage.js", "serve_pane.js", "serve.js",
)  # fmt: skip
MAX_CHARACTERS = 5000
MAX_BYTES = 1 << 16  # 5,000 characters are at most 60,000 bytes of JSON
MAX_BEAM = 16
MAX_TEMPERATURE = 2.0


class ViewerModel(Slot):
    """A model that only the viewer shows: a language model, or another model of a direction.

    view: of a model that is loaded already.  The limit of memory does not apply to it.
    """

    bytes, size_known = 0, True

    def __init__(self, name: str, path: str | Path, device: str = "cpu", view: ViewedModel | None = None) -> None:
        super().__init__()
        self.name, self.path, self.device, self.view = name, path, device, view

    @property
    def is_open(self) -> bool:
        return self.view is not None

    def open(self) -> None:
        """Load the model.  Raises ModelFolderError, and UsageError for a model that generates no text."""
        from dragoman.serve.viewer import ViewedModel

        if self.view is None:
            self.view = ViewedModel.load(self.path, self.device)

    def deliver_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing: the viewer runs the searches."""

    def close(self) -> None:
        self.view = None


class ViewerRequest(BaseModel):
    """One text for one model.  temperature 0: beam search, beam 1 = greedy; above 0: sampling with `seed`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(max_length=MAX_CHARACTERS, description=f"a text of at most {MAX_CHARACTERS:,} characters")
    model: str
    beam: int = Field(4, ge=1, le=MAX_BEAM, description=f"an integer from 1 (greedy) to {MAX_BEAM}")
    temperature: float = Field(
        0.0, ge=0, le=MAX_TEMPERATURE, allow_inf_nan=False,
        description=f"a number from 0 (no sampling) to {MAX_TEMPERATURE:g}",
    )  # fmt: skip
    seed: int = Field(0, ge=0, lt=1 << 32, description=f"an integer from 0 to {(1 << 32) - 1:,}")


class _InvalidSettings(BadRequest):
    """A request with problems: {"what", "where", "accepted"} each."""

    def __init__(self, *problems: dict[str, str], status: int = 422) -> None:
        super().__init__("; ".join(problem["what"] for problem in problems), status)
        self.problems = problems


class _ViewerErrors(ErrorFormat):
    """Errors as {"error": [{"what", "where", "accepted"}, ...]}."""

    def answer(
        self, message: str, status: int, headers: dict[str, str] | None = None, prefix: str = ""
    ) -> JSONResponse:
        return JSONResponse({"error": [_problem(message, "request", "")]}, status, {**HEADERS, **(headers or {})})

    def answer_to(self, error: Exception, request: Request) -> Response:
        if isinstance(error, _InvalidSettings):
            return JSONResponse({"error": error.problems}, error.status, HEADERS)
        return super().answer_to(error, request)


_ERRORS = _ViewerErrors("error", 403, 400)


class Viewer:
    """The page, and the searches that it shows.

    directions: their memory and admission apply to the viewer as well.  models: by the names that the page shows; may
    be replaced.  limits: of the server; the viewer accepts shorter texts.  clients: whose keys are optional.
    """

    clients = Clients()

    def __init__(self, directions: Directions, models: Mapping[str, Slot], limits: Limits | None = None) -> None:
        self.directions, self.models = directions, dict(models)
        limits = limits or Limits()
        self.limits = Limits(body=MAX_BYTES, read_seconds=limits.read_seconds, seconds=limits.seconds)
        self._creating = asyncio.Lock()

    def replace(self, models: Mapping[str, Slot]) -> None:
        """Show these models from the next request on."""
        for slot in set(self.models.values()) - set(models.values()):
            if isinstance(slot, ViewerModel):
                self.directions.memory.retire(slot)
        self.models = dict(models)

    def routes(self, prefix: str) -> list[Route]:
        """Return the routes; the page is at `prefix` + "/"."""

        def page() -> str:
            return render("serve.html", models=list(self.models), styles=VIEWER_STYLES, scripts=VIEWER_SCRIPTS)

        return [
            *page_routes(prefix, page, VIEWER_STYLES, VIEWER_SCRIPTS),
            Route(f"{prefix}/models", answered(self._describe, _ERRORS), methods=["GET"]),
            Route(f"{prefix}/translate/stream", answered(self._stream, _ERRORS), methods=["POST"]),
        ]

    @asynccontextmanager
    async def _using(self, name: str) -> AsyncIterator[ViewedModel]:
        """Keep a model loaded.  Raises DragomanError if it cannot be loaded."""
        slot, memory = self.models[name], self.directions.memory
        slot.pins += 1
        try:
            async with memory.using(slot):
                async with self._creating:
                    if slot.view is None:
                        assert isinstance(slot, Direction)
                        slot.view = await asyncio.to_thread(_view_of, slot)
                yield slot.view
        finally:
            memory.unpin(slot)

    async def _describe(self, request: Request) -> Response:
        self.clients.identify(request)
        models = []
        for name in list(self.models):
            async with self._using(name) as view:
                models.append({"name": name, **await asyncio.to_thread(getattr, view, "description")})
        limits = {"characters": MAX_CHARACTERS, "beam": MAX_BEAM, "temperature": MAX_TEMPERATURE}
        return JSONResponse({"models": models, "limits": limits}, headers=HEADERS)

    async def _stream(self, request: Request) -> Response:
        content_type = header(request, b"content-type").partition(";")[0].strip().lower()
        if content_type != "application/json":  # this also rejects forms from other sites
            what = f"content of type {content_type or 'none'}"
            raise _InvalidSettings(_problem(what, "header content-type", "application/json"), status=415)
        settings = _parse(await read_body(request, self.limits), list(self.models))
        client = self.clients.identify(request).name

        def failed(error: dict[str, Any]) -> bytes:
            return _line({"event": "error", "error": error["error"]})

        lines = self._lines(request, settings, client)
        return await answer_in_pieces(request, lines, _ERRORS, failed, "application/x-ndjson", HEADERS)

    async def _lines(self, request: Request, settings: ViewerRequest, client: str) -> AsyncGenerator[bytes]:
        """Yield one line per event, computed in a thread.  Raises Disconnected."""
        end = time.monotonic() + self.limits.seconds
        with self.directions.admitted(client, estimated_tokens([settings.text])):
            async with self._using(settings.model) as view:
                events = view.stream(settings.text, settings.beam, settings.temperature, settings.seed)
                while time.monotonic() < end:
                    if await request.is_disconnected():
                        raise Disconnected
                    async with view.queue:
                        event = await run_in_threadpool(next, events, None)
                    if event is None:
                        return
                    yield _line(event)
                raise too_slow(self.limits.seconds)


def _view_of(direction: Direction) -> ViewedModel:
    from dragoman.serve.viewer import ViewedModel

    folder = direction.model.folder if direction.model else None
    return ViewedModel.of(direction.translator, folder, (direction.source, direction.target))


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(plain(event, digits=17), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _problem(what: str, where: str, accepted: str) -> dict[str, str]:
    return {"what": what, "where": where, "accepted": accepted}


def _parse(body: bytes, names: list[str]) -> ViewerRequest:
    """Return a request.  Raises _InvalidSettings with all problems."""
    accepted = {name: setting.description or "" for name, setting in ViewerRequest.model_fields.items()}
    accepted["model"] = f"one of: {', '.join(names)}"
    try:
        request = ViewerRequest.model_validate_json(body)
    except ValidationError as error:
        raise _InvalidSettings(*(_explain(one, accepted) for one in error.errors(include_url=False))) from None
    if request.model not in names:
        what = f"model = {request.model[:80]!r}: no such model{nearest(request.model, names)}"
        raise _InvalidSettings(_problem(what, "body.model", accepted["model"]))
    return request


def _explain(error: Any, accepted: Mapping[str, str]) -> dict[str, str]:
    """Return one of pydantic's errors as a problem."""
    if not error["loc"]:
        what = "the body is not valid JSON" if error["type"] == "json_invalid" else "the body is not a JSON object"
        return _problem(what, "body", f"a JSON object with {', '.join(accepted)}")
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return _problem(f"unknown setting {name[:80]!r}{nearest(name, accepted)}", f"body.{name}", ", ".join(accepted))
    what = {
        "missing": f"{name} is missing",
        "string_too_long": f"the text has {len(str(error['input'])):,} characters",
    }.get(error["type"], f"{name} = {str(error['input'])[:80]}")
    return _problem(what, f"body.{name}", accepted[name])
