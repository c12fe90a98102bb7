"""The web application: a page, what it is made of, the models it knows, and translations as streams of events."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.data.tokenizer import BOS, EOS
from dragoman.errors import DragomanError, UsageError, nearest
from dragoman.models.model_folder import read_config, wrong_model
from dragoman.pages.page import read_assets, render
from dragoman.pipelines.generation import TextGenerator
from dragoman.pipelines.translation import Translator
from dragoman.serve.viewer import Event, Observed, continue_live, translate_live

__all__ = ["Served", "TranslateRequest", "create_app", "listen", "load_served", "run"]

STYLES = ("colors.css", "page.css", "language.css", "serve.css")
SCRIPTS = ("page.js", "language.js", "packing.js", "serve_heads.js", "serve_stage.js", "serve_pane.js", "serve.js")
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
MOST_CHARACTERS = 5000
MOST_BYTES = 1 << 16  # 5,000 characters are at most 60,000 bytes of JSON
MOST_BEAMS = 16
MOST_TEMPERATURE = 2.0


@dataclass
class Served:
    """A model on the page.

    languages: source and target, as the configuration names them; only a translator has them.
    """

    model: Translator | TextGenerator
    architecture: str
    languages: tuple[str, str] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Visitors wait here, first come first served, and not in threads, of which there are few."""

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> Served:
        """Raises ModelFolderError, and UsageError for a model that writes no text."""
        config = read_config(path)
        if config.data.kind == "parallel":
            languages = (config.data.source_language, config.data.target_language)
            return cls(Translator.load(path, device, engine="plain"), config.model.architecture, languages)
        if config.data.kind == "text":
            return cls(TextGenerator.load(path, device, engine="plain"), config.model.architecture)
        raise wrong_model(path, config, "writes no text, which is what the page shows")

    def live(self, ask: TranslateRequest) -> Iterator[Event]:
        """The events of what the page asks for: temperature 0 searches, anything above draws."""
        settings: dict[str, Any] = {"sample": ask.temperature > 0, "beam": ask.beam, "seed": ask.seed}
        if ask.temperature > 0:
            settings["temperature"] = ask.temperature
        if isinstance(self.model, Translator):
            return translate_live(self.model, ask.text, self.lock, **settings)
        return continue_live(self.model, ask.text, self.lock, **settings)

    def describe(self) -> dict[str, Any]:
        """What the page says of the model and needs to know; `attention` is null where there are no weights to show."""
        translates = isinstance(self.model, Translator)
        shape = self._attention_shape()
        over = "source" if translates else "before"
        return {
            "architecture": self.architecture,
            "writes": "translation" if translates else "continuation",
            "languages": self.languages,
            "parameters": self.model.model.parameter_count(),
            "beam": self.model.settings.beam if isinstance(self.model, Translator) else 1,
            "longest": self.model.max_source if isinstance(self.model, Translator) else self.model.max_tokens,
            "attention": shape and {"over": over, "layers": shape[0], "heads": shape[1]},
        }

    def _attention_shape(self) -> tuple[int, int] | None:
        """Layers and heads, as one step shows them."""
        translates = isinstance(self.model, Translator)
        observed = Observed(self.model.model, "cross_attn" if translates else "self_attn", self.lock)
        src = torch.tensor([[EOS]] if translates else [[]], dtype=torch.long, device=self.model.device)
        with torch.no_grad():
            observed.step(src.new_tensor([BOS]), observed.start(src, None, beams=1, max_len=1))
        weights = observed.sights[0].weights
        return None if weights is None else (weights.size(1), weights.size(2))


def load_served(paths: Sequence[str | Path], device: str | torch.device = "cpu") -> dict[str, Served]:
    """Models by name: the last part of the path, or as many as tell them apart.  Raises as `Served.load` does."""
    if not paths:
        raise UsageError("no models to serve: name at least one")
    whole = [Path(path).resolve() for path in paths]
    twice = sorted({str(path) for place, path in enumerate(whole) if path in whole[:place]})
    if twice:
        raise UsageError(f"named twice: {', '.join(twice)}; name each model once")
    for parts in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-parts:]) for path in whole]
        if len(set(names)) == len(names):
            break
    return {name: Served.load(path, device) for name, path in zip(names, paths, strict=True)}


# ------------------------------------------------------------------------------------------------------ what is asked


class TranslateRequest(BaseModel):
    """One text for one model.  temperature 0: beam search, beam 1 = greedy; above 0: drawn, with `seed`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(max_length=MOST_CHARACTERS)
    model: str
    beam: int = Field(4, ge=1, le=MOST_BEAMS)
    temperature: float = Field(0.0, ge=0, le=MOST_TEMPERATURE, allow_inf_nan=False)
    seed: int = Field(0, ge=0, lt=1 << 32)


class RequestError(Exception):
    """A request that cannot be carried out: its problems, each {"what", "where", "accepted"}."""

    def __init__(self, problems: list[dict[str, str]], status: int = 422) -> None:
        super().__init__(problems)
        self.problems = problems
        self.status = status


def _problem(what: str, where: str, accepted: str) -> dict[str, str]:
    return {"what": what, "where": where, "accepted": accepted}


def _accepted(names: Sequence[str]) -> dict[str, str]:
    return {
        "text": f"a text of at most {MOST_CHARACTERS:,} characters",
        "model": f"one of: {', '.join(names)}",
        "beam": f"a whole number from 1 (greedy) to {MOST_BEAMS}",
        "temperature": f"a number from 0 (nothing is drawn) to {MOST_TEMPERATURE:g}",
        "seed": f"a whole number from 0 to {(1 << 32) - 1:,}",
    }


async def _body(request: Request) -> bytes:
    """The request's body, never more than a little above the limit of it.  Raises RequestError."""
    kind = request.headers.get("content-type", "none").split(";")[0].strip().lower()
    if kind != "application/json":  # which also keeps forms of other sites out
        raise RequestError([_problem(f"content of type {kind}", "header content-type", "application/json")], 415)
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                accepted = f"at most {MOST_BYTES:,} bytes, of which the text has at most {MOST_CHARACTERS:,} characters"
                raise RequestError([_problem("the request is too large", "body", accepted)], 413)
    except ClientDisconnect:
        raise RequestError(
            [_problem("the connection ended before the request did", "body", "a whole request")]
        ) from None
    return body


def _ask(body: bytes, names: Sequence[str]) -> TranslateRequest:
    """Raises RequestError with every problem at once."""
    accepted = _accepted(names)
    problems = []
    try:
        ask = TranslateRequest.model_validate_json(body)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            name = str(one["loc"][0]) if one["loc"] else ""
            problems.append(_problem(*_what(one, name, accepted)))
        raise RequestError(problems) from None
    if ask.model not in names:
        what = f"model = {ask.model[:80]!r}: no such model here{nearest(ask.model, names)}"
        raise RequestError([_problem(what, "body.model", accepted["model"])])
    return ask


def _what(error: Any, name: str, accepted: Mapping[str, str]) -> tuple[str, str, str]:
    """One of pydantic's errors as what, where, accepted."""
    if not name:
        return f"the body is no request: {error['msg']}", "body", f"a JSON object with {', '.join(accepted)}"
    where = f"body.{name}"
    if error["type"] == "missing":
        return f"{name} is missing", where, accepted[name]
    if error["type"] == "extra_forbidden":
        return f"no such setting: {name[:80]!r}{nearest(name, accepted)}", where, ", ".join(accepted)
    if error["type"] == "string_too_long":
        return f"the text has {len(error['input']):,} characters", where, accepted[name]
    return f"{name} = {str(error['input'])[:80]}", where, accepted[name]


# ----------------------------------------------------------------------------------------------------- what is answered


class _WithHeaders:
    """Puts HEADERS on every response of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        await self.app(scope, receive, sending)


def create_app(models: Mapping[str, Served]) -> FastAPI:
    """The application for models by name.  Raises UsageError where there are none."""
    if not models:
        raise UsageError("no models to serve: name at least one")
    app = FastAPI(title="Dragoman", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_WithHeaders)
    names = list(models)
    page = render("serve.html", models=names, styles=STYLES, scripts=SCRIPTS)
    known = {
        "models": [{"name": name, **served.describe()} for name, served in models.items()],
        "limits": {"characters": MOST_CHARACTERS, "beam": MOST_BEAMS, "temperature": MOST_TEMPERATURE},
    }
    files = {name: read_assets(name) for name in (*STYLES, *SCRIPTS)}

    @app.get("/")
    async def home() -> Response:
        return HTMLResponse(page)

    @app.get("/models")
    async def what_is_here() -> Response:
        return JSONResponse(known)

    @app.get("/web/{name}")
    async def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return Response(files[name], media_type=TYPES[Path(name).suffix])

    @app.post("/translate/stream")
    async def translate(request: Request) -> Response:
        ask = _ask(await _body(request), names)
        events = _safely(models[ask.model].live(ask))
        lines = _lines(events, request, models[ask.model].turn)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    app.add_exception_handler(RequestError, _refuse)
    app.add_exception_handler(HTTPException, _not_here)
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return JSONResponse({"error": error.problems}, error.status)


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:80]}: {error.detail}"
    accepted = "GET /, GET /models, POST /translate/stream"
    return JSONResponse({"error": [_problem(what, "address", accepted)]}, error.status_code)


async def _lines(events: Iterator[Event], request: Request, turn: asyncio.Lock) -> AsyncIterator[bytes]:
    """A line of JSON an event, made in a thread when it is its turn; the model stops when nobody listens any more."""
    while not await request.is_disconnected():
        async with turn:
            event = await run_in_threadpool(next, events, None)
        if event is None:
            return
        yield json.dumps(_finite(event), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _safely(events: Iterator[Event]) -> Iterator[Event]:
    """The same, with an event "error" in the place of an exception: the status line has been sent long ago."""
    try:
        yield from events
    except DragomanError as error:
        yield {"event": "error", "error": [_problem(str(error), "model", "")]}
    except Exception as error:  # a mistake of ours must not look like the end of the text
        print(f"dragoman serve: {type(error).__name__}: {error}", file=sys.stderr)
        what = f"{type(error).__name__}: {error}. This is a mistake in Dragoman, not yours; please report it."
        yield {"event": "error", "error": [_problem(what, "server", "")]}


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have (a log-probability of minus infinity)."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------------------- serving


def listen(host: str, port: int) -> socket.socket:
    """A socket that waits for visitors; port 0 = any free one.

    Raises UsageError for an address this machine does not have, DragomanError for a port that cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--host {host[:80]}: no such address ({why}); accepted: 127.0.0.1 (only this machine comes in), "
            "0.0.0.0 (whoever reaches this machine does)"
        ) from None
    door = socket.socket(family, kind, protocol)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(address)
        door.listen()
    except OSError as error:
        door.close()
        other = port + 1 if 1024 <= port < 65535 else 8000
        raise DragomanError(
            f"{host}:{port} cannot be had ({error.strerror}), perhaps because something is there already; choose "
            f"another port, such as --port {other} (--port 0 takes a free one)"
        ) from None
    return door


def run(app: FastAPI, door: socket.socket) -> None:
    """Serve until Ctrl-C."""
    config = uvicorn.Config(app, log_level="error", lifespan="off", server_header=False, timeout_graceful_shutdown=2)
    with suppress(KeyboardInterrupt), door:
        uvicorn.Server(config).run(sockets=[door])
