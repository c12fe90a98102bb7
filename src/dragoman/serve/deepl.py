"""DeepL's interface, version 2: its official client works unchanged."""

from __future__ import annotations

import asyncio
import csv
import io
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman.markup.html import translate_html
from dragoman.markup.xml import translate_xml
from dragoman.pipelines.glossary import Glossary
from dragoman.serve.answers import ErrorFormat, answered
from dragoman.serve.clients import Client, Clients
from dragoman.serve.directions import Directions
from dragoman.serve.files import Document, DocumentJobs, Job, read_upload, translate_upload
from dragoman.serve.glossaries import GlossaryStore, StoredGlossary
from dragoman.serve.languages import Options, english_name, identify, model_code, route_of, translate_texts
from dragoman.serve.requests import BadRequest, Limits, parameters, read_body, unless_disconnected

__all__ = ["deepl_routes"]

_ERRORS = ErrorFormat("message", 456, failure="translation failed: ")
_MAX_TEXTS = 50
_UNLIMITED = 1_000_000_000_000
_REGIONS = {"en": ["EN-GB", "EN-US"], "pt": ["PT-PT", "PT-BR"]}
"""Target codes that DeepL's client requires for languages with variants."""


def deepl_routes(
    directions: Directions, limits: Limits, clients: Clients, glossaries: GlossaryStore, jobs: DocumentJobs
) -> list[Route]:
    """Return the routes for a server."""
    api = _DeepL(directions, limits, clients, glossaries, jobs)
    both = ["GET", "POST"]
    return [
        Route("/v2/translate", answered(api.translate, _ERRORS), methods=["POST"]),
        Route("/v2/document", answered(api.upload, _ERRORS), methods=["POST"]),
        Route("/v2/document/{id}", answered(api.document_status, _ERRORS), methods=["POST"]),
        Route("/v2/document/{id}/result", answered(api.document_result, _ERRORS), methods=["POST"]),
        Route("/v2/languages", answered(api.languages, _ERRORS), methods=both),
        Route("/v2/usage", answered(api.usage, _ERRORS), methods=both),
        Route("/v2/glossary-language-pairs", answered(api.pairs, _ERRORS), methods=["GET"]),
        Route("/v2/glossaries", answered(api.create_glossary, _ERRORS, 201), methods=["POST"]),
        Route("/v2/glossaries", answered(api.list_glossaries, _ERRORS), methods=["GET"]),
        Route("/v2/glossaries/{id}", answered(api.show_glossary, _ERRORS), methods=["GET"]),
        Route("/v2/glossaries/{id}", answered(api.delete_glossary, _ERRORS), methods=["DELETE"]),
        Route("/v2/glossaries/{id}/entries", answered(api.glossary_entries, _ERRORS), methods=["GET"]),
    ]


class _DeepL:
    def __init__(
        self,
        directions: Directions,
        limits: Limits,
        clients: Clients,
        glossaries: GlossaryStore,
        jobs: DocumentJobs,
    ) -> None:
        self.directions, self.limits, self.clients = directions, limits, clients
        self.glossaries, self.jobs = glossaries, jobs

    def _client(self, request: Request) -> Client:
        return self.clients.identify(request, missing=403)

    async def translate(self, request: Request) -> dict[str, Any]:
        values = parameters(request, await read_body(request, self.limits))
        client = self._client(request)
        texts = self._texts(values.get("text"))
        target = _required(values, "target_lang")
        self._check_options(values)
        given = values.get("source_lang")
        languages = [self._source(given)] * len(texts) if given else [self._detected(text) for text in texts]
        options = Options(
            target,
            client.name,
            glossary=self._glossary(client, values.get("glossary_id"), given),
            split=False if str(values.get("split_sentences", "1")) == "0" else None,
            markup=_markup(values),
        )
        characters = sum(map(len, texts))
        self.clients.accept(client, characters)
        work = translate_texts(self.directions, texts, languages, options)
        found = await unless_disconnected(request, work, self.limits.seconds)
        self.clients.charge(client, characters)
        return {
            "translations": [
                {
                    "detected_source_language": language.upper(),
                    "text": translation.text,
                    "billed_characters": len(text),
                }
                for text, language, translation in zip(texts, languages, found, strict=True)
            ]
        }

    def _texts(self, value: Any) -> list[str]:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise BadRequest("Parameter 'text' not specified; accepted: a list of texts")
        if len(texts) > _MAX_TEXTS:
            raise BadRequest(f"{len(texts)} texts; accepted: at most {_MAX_TEXTS}")
        characters = sum(map(len, texts))
        if characters > self.limits.characters:
            raise BadRequest(f"{characters:,} characters; accepted: at most {self.limits.characters:,}", 413)
        return texts

    def _check_options(self, values: dict[str, Any]) -> None:
        if values.get("formality", "default") not in ("default", "prefer_more", "prefer_less"):
            raise BadRequest(
                f"'formality' = {str(values['formality'])[:40]} is not supported by these models; accepted: default, "
                "prefer_more, prefer_less (no effect)"
            )
        if values.get("tag_handling") not in (None, "", "html", "xml"):
            raise BadRequest(f"'tag_handling' = {str(values['tag_handling'])[:40]} not supported; accepted: html, xml")
        if str(values.get("split_sentences", "1")) not in ("0", "1", "nonewlines"):
            raise BadRequest("'split_sentences' not supported; accepted: 0, 1, nonewlines")

    def _detected(self, text: str) -> str:
        return identify(self.directions, text)[0][0] if text else self.directions.sources[0]

    def _source(self, code: Any) -> str:
        known = model_code(self.directions, code)
        if known not in self.directions.sources:
            raise BadRequest(f"Value for 'source_lang' not supported: {str(code)[:40]}")
        return known

    def _glossary(self, client: Client, identifier: Any, source: Any) -> Glossary | None:
        if not identifier:
            return None
        if not source:
            raise BadRequest("Use of a glossary requires the source_lang parameter to be specified")
        return Glossary(self._stored(client, str(identifier)).entries)

    def _stored(self, client: Client, identifier: str) -> StoredGlossary:
        stored = self.glossaries.find(client.owner, identifier)
        if stored is None:
            raise BadRequest("Glossary not found", 404)
        return stored

    async def upload(self, request: Request) -> dict[str, str]:
        upload = await read_upload(request, await read_body(request, self.limits))
        client = self._client(request)
        source = upload.fields.get("source_lang")
        if not source:
            accepted = ", ".join(code.upper() for code in self.directions.sources)
            raise BadRequest(f"Parameter 'source_lang' not specified: documents need it; accepted: {accepted}")
        self._check_options(upload.fields)
        route = route_of(self.directions, self._source(source), _required(upload.fields, "target_lang"))
        glossary = self._glossary(client, upload.fields.get("glossary_id"), source)
        work = partial(translate_upload, upload.format, route[-1].target if route else "", glossary)
        self.clients.accept(client, 1)  # its characters are not known yet
        run = self.directions.run(route, work, Document(upload.data), len(upload.data), client.name)
        identifier, job = await self.jobs.start(upload.name, len(upload.data), run)
        return {"document_id": identifier, "document_key": job.key}

    async def _job(self, request: Request) -> Job:
        values = parameters(request, await read_body(request, self.limits))
        job = await self.jobs.find(request.path_params["id"])
        if job is None or not secrets.compare_digest(job.key.encode(), str(values.get("document_key")).encode()):
            raise BadRequest("Document not found", 404)
        return job

    async def document_status(self, request: Request) -> dict[str, Any]:
        job = await self._job(request)
        answer: dict[str, Any] = {"document_id": request.path_params["id"]}
        if job.error is not None:
            return answer | {"status": "error", "error_message": job.error}
        if job.result is None:
            return answer | {"status": "translating", "seconds_remaining": 1}
        return answer | {"status": "done", "billed_characters": job.result.characters}

    async def document_result(self, request: Request) -> Response:
        job = await self._job(request)
        if job.result is None:
            raise BadRequest(job.error or "Document is not ready", 404 if job.error else 503)
        client = self._client(request)
        await self.jobs.forget(request.path_params["id"])
        self.clients.charge(client, job.result.characters)
        return Response(job.result.data, media_type="application/octet-stream")

    async def languages(self, request: Request) -> list[dict[str, Any]]:
        values = parameters(request, await read_body(request, self.limits))
        if values.get("type", "source") == "source":
            return [{"language": code.upper(), "name": english_name(code)} for code in self.directions.sources]
        targets = sorted({target for _, target in self.directions.by_pair})
        codes = [code for target in targets for code in _REGIONS.get(target, [target.upper()])]
        return [{"language": code, "name": english_name(code), "supports_formality": False} for code in codes]

    async def usage(self, request: Request) -> dict[str, int]:
        client = self._client(request)
        limit = client.key.characters if client.key else None
        return {"character_count": self.clients.used(client), "character_limit": limit or _UNLIMITED}

    async def pairs(self, request: Request) -> dict[str, Any]:
        pairs = sorted(self.directions.by_pair)
        return {"supported_languages": [{"source_lang": source, "target_lang": target} for source, target in pairs]}

    async def create_glossary(self, request: Request) -> dict[str, Any]:
        values = parameters(request, await read_body(request, self.limits))
        owner = self._client(request).owner
        given = {name: _required(values, name) for name in ("name", "source_lang", "target_lang", "entries")}
        delimiter = {"tsv": "\t", "csv": ","}.get(str(values.get("entries_format", "tsv")))
        if delimiter is None:
            raise BadRequest("Unsupported value for 'entries_format'; accepted: tsv, csv")
        entries: dict[str, str] = {}
        for number, row in enumerate(_rows(given["entries"], delimiter), start=1):
            if len(row) < 2:
                raise BadRequest(f"Invalid glossary entries: line {number} has no target term")
            if row[0] in entries:
                raise BadRequest(f"Invalid glossary entries: line {number}: {row[0][:40]!r} stands before")
            entries[row[0].strip()] = row[1].strip()
        if not entries:
            raise BadRequest("Invalid glossary entries: no entries")
        Glossary(entries)
        source, target = (model_code(self.directions, given[name]) for name in ("source_lang", "target_lang"))
        return _shown(await asyncio.to_thread(self.glossaries.add, owner, given["name"], source, target, entries))

    async def list_glossaries(self, request: Request) -> dict[str, Any]:
        return {"glossaries": [_shown(stored) for stored in self.glossaries.owned_by(self._client(request).owner)]}

    async def show_glossary(self, request: Request) -> dict[str, Any]:
        return _shown(self._stored(self._client(request), request.path_params["id"]))

    async def delete_glossary(self, request: Request) -> Response:
        owner = self._client(request).owner
        if not await asyncio.to_thread(self.glossaries.delete, owner, request.path_params["id"]):
            raise BadRequest("Glossary not found", 404)
        return Response(status_code=204)

    async def glossary_entries(self, request: Request) -> Response:
        entries = self._stored(self._client(request), request.path_params["id"]).entries
        lines = (f"{source}\t{target}" for source, target in entries.items())
        return Response("\n".join(lines), media_type="text/tab-separated-values")


def _markup(values: dict[str, Any]) -> Callable[..., list[str]] | None:
    """Return the function that translates texts with tags, with the options of a request."""
    if values.get("tag_handling") == "html":
        return translate_html
    if values.get("tag_handling") != "xml":
        return None
    options: dict[str, Any] = {"split_sentences": str(values.get("split_sentences", "1"))}
    options["outline_detection"] = str(values.get("outline_detection", "1")).lower() not in ("0", "false")
    for name in ("ignore_tags", "splitting_tags", "non_splitting_tags"):
        tags = values.get(name) or []
        listed = tags.split(",") if isinstance(tags, str) else tags
        if not isinstance(listed, list) or not all(isinstance(tag, str) for tag in listed):
            raise BadRequest(f"'{name}' not supported; accepted: a list of names")
        options[name] = [tag.strip() for tag in listed if tag.strip()]
    return partial(translate_xml, **options)


def _rows(text: str, delimiter: str) -> list[list[str]]:
    lines = io.StringIO(text, newline="")
    try:
        if delimiter == "\t":
            rows = list(csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE))
        else:
            rows = list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise BadRequest(f"Invalid glossary entries: {error}") from None
    return [row for row in rows if row]


def _required(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"Parameter '{name}' not specified")
    return value


def _shown(stored: StoredGlossary) -> dict[str, Any]:
    return {
        "glossary_id": stored.id,
        "name": stored.name,
        "ready": True,
        "source_lang": stored.source,
        "target_lang": stored.target,
        "creation_time": stored.created,
        "entry_count": len(stored.entries),
    }
