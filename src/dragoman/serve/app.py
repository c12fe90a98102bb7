"""The web application: the page and its files, the served models, and searches as streams of events."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dragoman.errors import DragomanError, UsageError, nearest
from dragoman.models.model_folder import distinct_names, read_config, wrong_model
from dragoman.pages.page import plain, read_assets, render
from dragoman.pipelines.generation import TextGenerator
from dragoman.pipelines.translation import Translator
from dragoman.serve.page import HEADERS, TYPES
from dragoman.serve.viewer import Event, RecordingStepper, stream_continuation, stream_translation
from dragoman.tokenizers import BOS, EOS

__all__ = ["ServedModel", "TranslateRequest", "create_app", "load_models"]

STYLES = ("colors.css", "page.css", "language.css", "maps.css", "figure.css", "serve.css")
SCRIPTS = (
    "page.js", "language.js", "packing.js", "maps.js", "figure.js", "serve_stage.js", "serve_pane.js", "serve.js",
)  # fmt: skip
MAX_CHARACTERS = 5000
MAX_BYTES = 1 << 16  # 5,000 characters are at most 60,000 bytes of JSON
MAX_BEAM = 16
MAX_TEMPERATURE = 2.0


@dataclass
class ServedModel:
    """A translator with its source and target language, or a language model.

    lock: held while the model computes.  queue: requests wait here in order of arrival, and not in worker threads, of
    which there are few.
    """

    pipeline: Translator | TextGenerator
    architecture: str
    languages: tuple[str, str] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    queue: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> ServedModel:
        """Load a model folder.  Raises ModelFolderError, and UsageError for a model that generates no text."""
        config = read_config(path)
        if config.data.kind == "parallel":
            languages = (config.data.source_language, config.data.target_language)
            return cls(Translator.load(path, device, engine="pytorch"), config.model.architecture, languages)
        if config.data.kind == "text":
            return cls(TextGenerator.load(path, device, engine="pytorch"), config.model.architecture)
        raise wrong_model(path, config, "generates no text from the plain text of a page")

    def stream(self, request: TranslateRequest) -> Iterator[Event]:
        """Yield the events of a request; a temperature above 0 means sampling."""
        sample = request.temperature > 0
        settings: dict[str, Any] = {"sample": sample, "beam": 1 if sample else request.beam, "seed": request.seed}
        settings["temperature"] = request.temperature or 1.0
        if isinstance(self.pipeline, Translator):
            return stream_translation(self.pipeline, request.text, self.lock, **settings)
        return stream_continuation(self.pipeline, request.text, self.lock, **settings)

    def describe(self) -> dict[str, Any]:
        """Return what the page shows of the model; `attention` is None if there are no weights to show."""
        if isinstance(self.pipeline, Translator):
            writes, longest, over, source = "translation", self.pipeline.max_source, "source", [EOS]
        else:
            writes, longest, over, source = "continuation", self.pipeline.max_tokens, "before", []
        stepper = RecordingStepper(self.pipeline.model, self.lock)
        src = torch.tensor([source], dtype=torch.long, device=self.pipeline.device)
        with torch.no_grad():
            stepper.step(src.new_tensor([BOS]), stepper.start(src, None, beams=1, max_len=1))
        weights = stepper.records[0].weights  # (1, layers, heads, S)
        attention = None if weights is None else {"over": over, "layers": weights.size(1), "heads": weights.size(2)}
        return {
            "architecture": self.architecture,
            "writes": writes,
            "languages": self.languages,
            "parameters": self.pipeline.model.parameter_count(),
            "beam": self.pipeline.settings.beam,
            "longest": longest,
            "attention": attention,
        }


def load_models(paths: Sequence[str | Path], device: str | torch.device = "cpu") -> dict[str, ServedModel]:
    """Load models; their names are the last components of their paths, as few as make the names distinct.

    Raises UsageError for no path or a repeated one, and as `ServedModel.load` does.
    """
    if not paths:
        raise UsageError("no models to serve; specify at least one")
    resolved = [Path(path).resolve() for path in paths]
    repeated = sorted({str(path) for path in resolved if resolved.count(path) > 1})
    if repeated:
        raise UsageError(f"models specified twice: {', '.join(repeated)}; specify each model once")
    return {name: ServedModel.load(path, device) for name, path in zip(distinct_names(resolved), paths, strict=True)}


class TranslateRequest(BaseModel):
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


class RequestError(Exception):
    """An invalid request; problems: {"what", "where", "accepted"} each."""

    def __init__(self, *problems: dict[str, str], status: int = 422) -> None:
        super().__init__(*problems)
        self.problems = problems
        self.status = status


def _problem(what: str, where: str, accepted: str) -> dict[str, str]:
    return {"what": what, "where": where, "accepted": accepted}


async def _read_body(request: Request) -> bytes:
    content_type = request.headers.get("content-type", "none").split(";")[0].strip().lower()
    if content_type != "application/json":  # this also rejects forms from other sites
        problem = _problem(f"content of type {content_type}", "header content-type", "application/json")
        raise RequestError(problem, status=415)
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BYTES:
                accepted = f"at most {MAX_BYTES:,} bytes, with at most {MAX_CHARACTERS:,} characters of text"
                raise RequestError(_problem("the request is too large", "body", accepted), status=413)
    except ClientDisconnect:
        raise RequestError(_problem("the connection was closed early", "body", "a complete request")) from None
    return body


def _parse_request(body: bytes, names: Sequence[str]) -> TranslateRequest:
    """Return the request.  Raises RequestError with all problems."""
    accepted = {name: setting.description or "" for name, setting in TranslateRequest.model_fields.items()}
    accepted["model"] = f"one of: {', '.join(names)}"
    try:
        request = TranslateRequest.model_validate_json(body)
    except ValidationError as error:
        raise RequestError(*(_explain(one, accepted) for one in error.errors(include_url=False))) from None
    if request.model not in names:
        what = f"model = {request.model[:80]!r}: no such model{nearest(request.model, names)}"
        raise RequestError(_problem(what, "body.model", accepted["model"]))
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


def create_app(models: Mapping[str, ServedModel]) -> FastAPI:
    """Return the application for models by name.  Raises UsageError if there are none."""
    if not models:
        raise UsageError("no models to serve; specify at least one")
    app = FastAPI(title="Dragoman", docs_url=None, redoc_url=None, openapi_url=None)
    names = list(models)
    page = render("serve.html", models=names, styles=STYLES, scripts=SCRIPTS)
    description = {
        "models": [{"name": name, **model.describe()} for name, model in models.items()],
        "limits": {"characters": MAX_CHARACTERS, "beam": MAX_BEAM, "temperature": MAX_TEMPERATURE},
    }
    responses = {"": HTMLResponse(page, headers=HEADERS), "models": JSONResponse(description, headers=HEADERS)}
    for name in (*STYLES, *SCRIPTS):
        responses[f"web/{name}"] = Response(read_assets(name), headers=HEADERS, media_type=TYPES[Path(name).suffix])

    @app.post("/translate/stream")
    async def translate(request: Request) -> Response:
        parsed = _parse_request(await _read_body(request), names)
        model = models[parsed.model]
        lines = _json_lines(_with_error_event(model.stream(parsed)), request, model.queue)
        return StreamingResponse(lines, headers=HEADERS, media_type="application/x-ndjson")

    @app.get("/{path:path}")
    async def page_or_file(path: str) -> Response:
        if path not in responses:
            raise HTTPException(404)
        return responses[path]

    @app.exception_handler(RequestError)
    async def refuse(request: Request, error: RequestError) -> Response:
        return JSONResponse({"error": error.problems}, error.status, HEADERS)

    @app.exception_handler(HTTPException)
    async def not_found(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path[:80]}: {error.detail}"
        problem = _problem(what, "address", "GET /, GET /models, POST /translate/stream")
        return JSONResponse({"error": [problem]}, error.status_code, {**HEADERS, **(error.headers or {})})

    return app


async def _json_lines(events: Iterator[Event], request: Request, queue: asyncio.Lock) -> AsyncIterator[bytes]:
    """Yield one line of JSON per event, computed in a thread; stop if the client has disconnected."""
    while not await request.is_disconnected():
        async with queue:
            event = await run_in_threadpool(next, events, None)
        if event is None:
            return
        yield json.dumps(plain(event, digits=17), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _with_error_event(events: Iterator[Event]) -> Iterator[Event]:
    """Yield the events, and an "error" event for an exception, because the status line has already been sent."""
    try:
        yield from events
    except DragomanError as error:
        yield {"event": "error", "error": [_problem(str(error), "model", "")]}
    except Exception as error:  # a bug must not look like the end of the text
        print(f"dragoman serve: {type(error).__name__}: {error}", file=sys.stderr)
        what = f"{type(error).__name__}: {error}. This is a bug in Dragoman; please report it."
        yield {"event": "error", "error": [_problem(what, "server", "")]}
