"""LibreTranslate's interface: same routes, parameters, answers and errors, so that its clients work unchanged."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dragoman.errors import DragomanError, UsageError
from dragoman.pipelines.glossary import Glossary
from dragoman.serve.admission import Clients
from dragoman.serve.directions import (
    Directions,
    Options,
    english_name,
    identify,
    model_code,
    public_code,
    route_of,
    translate_texts,
)
from dragoman.serve.http import (
    BadRequest,
    ErrorFormat,
    Limits,
    Parameter,
    check_required,
    header,
    parameters,
    read_body,
    read_json,
    unless_disconnected,
)
from dragoman.serve.operations import (
    CODE,
    FILE,
    FLAG,
    MULTIPART,
    NOT_EMPTY,
    NUMBER,
    TEXT,
    TEXTS,
    Operation,
    array,
    fields,
)
from dragoman.serve.streaming import Report, event_stream
from dragoman.serve.uploads import Document, DocumentJobs, Upload, read_upload, translate_upload, upload_text

_LOG = logging.getLogger(__name__)
LIBRETRANSLATE_ERRORS = ErrorFormat("error", 403, "Slowdown: ", "Invalid request: ", "Cannot translate text: ")
_MAX_ENTRIES = 10_000
_MISSING = "Invalid request: missing {name} parameter"

_KEY = Parameter("api_key", TEXT)
_SOURCE = Parameter("source", {**CODE, "description": "source language, or auto"}, required=True)
_TARGET = Parameter("target", CODE, required=True)
_GLOSSARY_MODE = Parameter(
    "glossary_mode", {"enum": ["soft", "strict"], "default": "soft"},
    refusal="Invalid request: glossary_mode {value!r}; accepted: {accepted}",
)  # fmt: skip
_FORMAT = Parameter(
    "format", {"enum": ["text", "html"], "default": "text"},
    refusal="{value} format is not supported; accepted: {accepted}", empty=True,
)  # fmt: skip
_ALTERNATIVES = Parameter(
    "alternatives", {**NUMBER, "minimum": 0, "maximum": 16, "default": 0},
    refusal="Invalid request: 'alternatives' parameter must be a number from 0 to 16", empty=True,
)  # fmt: skip
_TRANSLATE = (
    Parameter("q", {**TEXTS, "description": "a text or a list of texts"}, required=True),
    _SOURCE,
    _TARGET,
    _FORMAT,
    _ALTERNATIVES,
    Parameter(
        "glossary", {"type": "object", "additionalProperties": TEXT, "description": "target terms by source terms"}
    ),
    _GLOSSARY_MODE,
    Parameter("stream", {**FLAG, "default": False, "description": "answer with server-sent events, as with Accept"}),
    _KEY,
)
_EVENTS = {
    "type": "string",
    "description": 'with stream or Accept: text/event-stream. Events "part" with {index, text}: the next piece of the '
    'translation of the text with that index; then "done" with the JSON answer, or "error" with {error, status}',
}
_TRANSLATED = fields(
    "translatedText",
    translatedText={**TEXTS, "description": "a list if q is a list, like all values of the answer"},
    detectedLanguage={"description": "with source = auto"},
    alternatives={"description": "if requested"},
    glossary={"description": "with a glossary: its terms in the text, and whether they were applied"},
)
_UPLOAD = (
    Parameter("file", FILE, required=True),
    _SOURCE,
    _TARGET,
    Parameter("glossary", {**TEXT, "description": "a JSON object of target terms by source terms"}),
    _GLOSSARY_MODE,
    _KEY,
)
_UPLOADED = fields(
    "translatedFileUrl",
    translatedFileUrl=TEXT,
    detectedLanguage={"description": "with source = auto"},
    glossary={"description": "with a glossary: its terms in the document, their occurrences, and whether applied"},
)
_SUGGESTION = (
    Parameter("q", {**NOT_EMPTY, "description": "the text"}, required=True),
    Parameter("s", {**NOT_EMPTY, "description": "its translation"}, required=True),
    _SOURCE,
    _TARGET,
    _KEY,
)


class LibreTranslate:
    """The operations of a server.  suggestions: None = they are refused."""

    def __init__(
        self,
        directions: Directions,
        limits: Limits,
        clients: Clients,
        jobs: DocumentJobs,
        suggestions: SuggestionFile | None = None,
    ) -> None:
        self.directions, self.limits, self.clients, self.jobs = directions, limits, clients, jobs
        self.suggestions = suggestions

    def operations(self) -> list[Operation]:
        """Return the operations of the interface."""
        confidence = {"type": "number", "minimum": 0, "maximum": 100}
        detected = array(fields(confidence=confidence, language=CODE))
        languages = array(fields(code=CODE, name=TEXT, targets=array(CODE)))
        detect, upload = (Parameter("q", NOT_EMPTY, required=True), _KEY), "Translate a document"
        return [
            Operation("POST", "/translate", self.translate, "Translate texts", _TRANSLATED, _TRANSLATE, events=_EVENTS),
            Operation("POST", "/detect", self.detect, "Identify the language of a text", detected, detect),
            Operation("GET POST", "/languages", self.languages, "List the languages", languages),
            Operation("POST", "/translate_file", self.translate_file, upload, _UPLOADED, _UPLOAD, forms=MULTIPART),
            Operation(
                "POST", "/suggest", self.suggest, "Suggest a better translation", fields(success=FLAG), _SUGGESTION
            ),
            Operation("GET", "/download_file/{name}", self.download_file, "Fetch a translated document"),
            Operation("GET", "/frontend/settings", self.settings, "Limits and features of the server", fields()),
            Operation("GET", "/health", self.health, "LibreTranslate's health check", fields(status=TEXT)),
        ]

    async def translate(self, request: Request) -> dict[str, Any] | Response:
        values = parameters(request, await read_body(request, self.limits))
        client = self.clients.identify(request, values.get("api_key"))
        check_required(values, _TRANSLATE, _MISSING)
        stream = values.get("stream")
        if stream is None:
            accepted = header(request, b"accept").split(",")
            in_events = any(kind.partition(";")[0].strip().lower() == "text/event-stream" for kind in accepted)
        elif str(stream).lower() in ("true", "1", "false", "0", ""):
            in_events = str(stream).lower() in ("true", "1")
        else:
            raise BadRequest("Invalid request: 'stream' parameter must be true or false")
        texts, alternatives = self._texts(values["q"]), _ALTERNATIVES.read(values)
        markup = None
        if _FORMAT.read(values) == "html":
            from dragoman.markup.html import translate_html  # like `dragoman.documents`, see uploads.py

            markup = translate_html
        detected = [self._detect(text)[0] for text in texts] if values["source"] == "auto" else None
        if detected is None:
            languages = [self._source(values["source"])] * len(texts)
        else:
            languages = [model_code(self.directions, best["language"]) for best in detected]
        options = Options(values["target"], client.name, alternatives, glossary_of(values), markup=markup)
        self.clients.accept(client, sum(map(len, texts)))

        is_charged = False

        def charge() -> None:  # when the first sentence is reported, or at the end
            nonlocal is_charged
            if not is_charged:
                is_charged = True
                self.clients.charge(client, sum(map(len, texts)))

        async def run(report: Report | None = None) -> dict[str, Any]:
            def charge_and_report(index: int, text: str) -> None:
                charge()
                assert report is not None
                report(index, text)

            reported = None if report is None else charge_and_report
            results = await translate_texts(self.directions, texts, languages, options, reported)
            charge()
            answer: dict[str, Any] = {"translatedText": [result.text for result in results]}
            if detected is not None:
                answer["detectedLanguage"] = detected
            if alternatives:
                others = [dict.fromkeys(other.text for other in result.nbest) for result in results]
                answer["alternatives"] = [
                    [text for text in texts if text != result.text][:alternatives]
                    for texts, result in zip(others, results, strict=True)
                ]
            if "glossary" in values:
                answer["glossary"] = [[asdict(term) for term in result.terms] for result in results]
            return answer if isinstance(values["q"], list) else {name: value[0] for name, value in answer.items()}

        if in_events:
            return await event_stream(request, run, self.limits.seconds, LIBRETRANSLATE_ERRORS)
        return await unless_disconnected(request, run(), self.limits.seconds)

    def _texts(self, q: Any) -> list[str]:
        texts = q if isinstance(q, list) else [q]
        if not all(isinstance(text, str) for text in texts):
            raise BadRequest("Invalid request: q parameter must be a text or a list of texts")
        for size, limit in ((len(texts), self.limits.texts), (sum(map(len, texts)), self.limits.characters)):
            if size > limit:
                raise BadRequest(f"Invalid request: request ({size}) exceeds text limit ({limit})")
        return texts

    def _source(self, code: Any) -> str:
        known = model_code(self.directions, code)
        if known not in self.directions.sources:
            raise BadRequest(f"{str(code)[:40]} is not supported")
        return known

    def _detect(self, text: str) -> list[dict[str, Any]]:
        ranked = identify(self.directions, text)
        return [{"confidence": round(100 * probability), "language": public_code(code)} for code, probability in ranked]

    async def translate_file(self, request: Request) -> dict[str, Any]:
        upload = await read_upload(request, await read_body(request, self.limits))
        client = self.clients.identify(request, upload.fields.get("api_key"))
        check_required(upload.fields, (_SOURCE, _TARGET), _MISSING)
        values: dict[str, Any] = dict(upload.fields)
        if "glossary" in values:  # in a form, the text of a JSON object
            try:
                values["glossary"] = read_json(values["glossary"] or "null")
            except (ValueError, RecursionError):
                raise BadRequest("Invalid request: glossary is not valid JSON; accepted: an object of terms") from None
        glossary = glossary_of(values)
        self.clients.accept(client, 1)  # its characters are not known yet
        source, answer = await self._file_source(request, upload)
        route = route_of(self.directions, source, upload.fields["target"])
        work = partial(translate_upload, upload.format, route[-1].target if route else "", glossary)
        run = self.directions.run(route, work, Document(upload.data), len(upload.data), client.name)
        finished = self.jobs.finished(client.name, upload.name, len(upload.data), run)
        identifier, document = await unless_disconnected(request, finished, self.limits.seconds)
        self.clients.charge(client, document.characters)
        suffix = PurePosixPath(upload.name).suffix
        answer["translatedFileUrl"] = str(request.url_for("download_file", name=f"{identifier}{suffix}"))
        return answer if glossary is None else answer | {"glossary": document.term_report()}

    async def _file_source(self, request: Request, upload: Upload) -> tuple[str, dict[str, Any]]:
        """Return the source language of an upload, and what the answer says about it."""
        if upload.fields["source"] != "auto":
            return self._source(upload.fields["source"]), {}
        reading = asyncio.to_thread(upload_text, upload)
        text = await unless_disconnected(request, reading, self.limits.seconds)
        detected = self._detect(text)[0]
        return model_code(self.directions, detected["language"]), {"detectedLanguage": detected}

    async def download_file(self, request: Request) -> Response:
        identifier, _, _ = str(request.path_params["name"]).partition(".")
        job = await self.jobs.find(identifier)
        if job is None or job.result is None:
            return JSONResponse({"error": "Invalid filename"}, 404)
        named = {"content-disposition": f"attachment; filename*=UTF-8''{quote(job.name)}"}
        return Response(job.result.data, media_type="application/octet-stream", headers=named)

    async def detect(self, request: Request) -> list[dict[str, Any]]:
        values = parameters(request, await read_body(request, self.limits))
        if not isinstance(values.get("q"), str) or not values["q"]:
            raise BadRequest(_MISSING.format(name="q"))
        client = self.clients.identify(request, values.get("api_key"))
        self._texts(values["q"])
        self.clients.accept(client, 0)
        return self._detect(values["q"])

    async def languages(self, request: Request) -> list[dict[str, Any]]:
        return [
            {
                "code": public_code(source),
                "name": english_name(source),
                "targets": [public_code(target) for target in self.directions.targets(source)],
            }
            for source in self.directions.languages
        ]

    async def settings(self, request: Request) -> dict[str, Any]:
        from dragoman.documents import SUFFIXES

        sources = self.directions.sources
        target = self.directions.targets(sources[0])[0]
        language = {
            "source": {"code": "auto", "name": "Auto Detect"},
            "target": {"code": public_code(target), "name": english_name(target)},
        }
        return {
            "charLimit": self.limits.characters,
            "frontendTimeout": 500,
            "apiKeys": self.clients.store is not None,
            "keyRequired": self.clients.required,
            "suggestions": self.suggestions is not None,
            "filesTranslation": True,
            "supportedFilesFormat": list(SUFFIXES),
            "language": language,
        }

    async def suggest(self, request: Request) -> dict[str, Any]:
        if self.suggestions is None:
            raise BadRequest("Suggestions are disabled on this server.", 403)
        values = parameters(request, await read_body(request, self.limits))
        client = self.clients.identify(request, values.get("api_key"))
        suggestion: dict[str, str] = {}
        for name in ("q", "s", "source", "target"):
            value = values.get(name)
            if not isinstance(value, str) or not value.strip():
                raise BadRequest(_MISSING.format(name=name))
            (suggestion[name],) = self._texts(value)
        detected = suggestion["source"] == "auto"
        source = identify(self.directions, suggestion["q"])[0][0] if detected else self._source(suggestion["source"])
        target = model_code(self.directions, suggestion["target"])
        if target not in self.directions.languages or target == source:
            raise BadRequest(f"{suggestion['target'][:40]} is not supported as a target language from {source}")
        self.clients.accept(client, 0)
        try:
            await asyncio.to_thread(self.suggestions.append, source, target, suggestion["q"], suggestion["s"])
        except DragomanError as error:
            _LOG.error("%s: %s", self.suggestions.path, error)
            raise BadRequest(str(error), 500) from None
        return {"success": True}

    async def health(self, request: Request) -> dict[str, str]:
        return {"status": "ok"}


def glossary_of(values: dict[str, Any]) -> Glossary | None:
    """Return the glossary of a request: `glossary`, a mapping, and `glossary_mode`, "soft" or "strict".

    Raises UsageError and BadRequest.
    """
    mode = _GLOSSARY_MODE.read(values)
    glossary = values.get("glossary")
    if isinstance(glossary, dict) and len(glossary) > _MAX_ENTRIES:
        raise BadRequest(f"Invalid request: the glossary has more than {_MAX_ENTRIES:,} entries")
    return Glossary(glossary, strict=mode == "strict") if glossary else None


_MAX_BYTES = 64 << 20
"""Size at which the file accepts no more, so that clients cannot fill the disk."""

_LOCKED = "another program has locked the file"
_LOCK_SECONDS = 5.0
"""Time to wait for another process that has locked the file; meanwhile a thread of the server is occupied."""


class SuggestionFile:
    """JSON lines, one per suggestion, with `time` (UTC), `source`, `target` (codes), `text` and `translation`.

    The file is opened for each suggestion, so that the operator can move it away.  Several servers may append to it.
    Raises UsageError if it cannot be written.
    """

    def __init__(self, path: Path, max_bytes: int = _MAX_BYTES) -> None:
        self.path, self.max_bytes = path, max_bytes
        self._lock = threading.Lock()
        try:
            os.close(self._open())
        except OSError as error:
            raise UsageError(
                f"suggestions = {str(path)!r}: cannot be written ({error.strerror or error}); specify a file in a "
                "folder that exists and can be written"
            ) from None

    def append(self, source: str, target: str, text: str, translation: str) -> None:
        """Store a suggestion, completely or not at all.  Raises DragomanError if it cannot be written."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"time": now, "source": source, "target": target, "text": text, "translation": translation}
        line = json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            if not self._lock.acquire(timeout=_LOCK_SECONDS):
                raise OSError(None, _LOCKED)
            try:
                self._write(line)
            finally:
                self._lock.release()
        except OSError as error:
            raise DragomanError(
                f"the suggestion cannot be stored ({error.strerror or error}); contact the administrator of this server"
            ) from None

    def _write(self, line: bytes) -> None:
        file = self._open()
        try:
            with _locked(file):
                size = os.fstat(file).st_size
                if size + len(line) > self.max_bytes:
                    raise DragomanError("the file of suggestions is full; contact the administrator of this server")
                if size:
                    os.lseek(file, size - 1, os.SEEK_SET)
                    if os.read(file, 1) != b"\n":  # a process was killed while it wrote
                        line = b"\n" + line
                try:
                    written = 0
                    while written < len(line):
                        written += os.write(file, line[written:])
                    os.fsync(file)
                except OSError:
                    os.ftruncate(file, size)  # such as a full disk, on which a part of the line was written
                    raise
        finally:
            os.close(file)

    def _open(self) -> int:
        """Open the file; only its owner may read it, because it has texts of clients.  Raises OSError."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # does not wait at a pipe
        file = os.open(self.path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(None, "it is not a regular file")
        return file


@contextmanager
def _locked(file: int) -> Iterator[None]:
    """Hold the lock of an open file, where the system has such locks; closing the file releases it as well.

    Raises OSError if another process has locked it for a long time.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        yield
        return
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                raise OSError(None, _LOCKED) from None
            time.sleep(0.01)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
