"""Glossaries of DeepL's interface: of one direction (version 2), and of several that can be changed (version 3)."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from dragoman.pipelines.glossary import Glossary
from dragoman.serve.admission import Client, Clients
from dragoman.serve.database import Dictionaries, GlossaryStore, StoredGlossary
from dragoman.serve.directions import Directions, model_code
from dragoman.serve.http import BadRequest, ErrorFormat, Limits, Parameter, parameters, read_body
from dragoman.serve.operations import CODE, FLAG, NOT_EMPTY, NUMBER, TEXT, Operation, array, fields, object_of

Stored = TypeVar("Stored")
DEEPL_ERRORS = ErrorFormat("message", 456, failure="translation failed: ")


def required(values: Mapping[str, Any], name: str) -> str:
    """Return a parameter that is a text.  Raises BadRequest if it is missing."""
    value = values.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"Parameter '{name}' not specified")
    return value


def source_language(directions: Directions, code: Any) -> str:
    """Return the code that the models use for a source language.  Raises BadRequest for an unknown one."""
    known = model_code(directions, code)
    if known not in directions.sources:
        raise BadRequest(f"Value for 'source_lang' not supported: {str(code)[:40]}")
    return known


def target_language(directions: Directions, values: Mapping[str, Any]) -> str:
    """Return `target_lang` as the client has written it.  Raises BadRequest for an unknown language."""
    target = required(values, "target_lang")
    if model_code(directions, target) not in directions.languages:
        raise BadRequest(f"Value for 'target_lang' not supported: {target[:40]}")
    return target


def language_pair(directions: Directions, values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the codes that the models use for `source_lang` and `target_lang`.  Raises BadRequest."""
    source = source_language(directions, required(values, "source_lang"))
    return source, model_code(directions, target_language(directions, values))


_NAME = Parameter("name", NOT_EMPTY, required=True)
_FORMAT = Parameter(
    "entries_format", {"enum": ["tsv", "csv"], "default": "tsv"},
    refusal="Unsupported value for 'entries_format'; accepted: {accepted}",
)  # fmt: skip
_DICTIONARY = (
    Parameter("source_lang", CODE, required=True),
    Parameter("target_lang", CODE, required=True),
    Parameter("entries", {**NOT_EMPTY, "description": "a source and a target term per line"}, required=True),
    _FORMAT,
)
_DICTIONARIES = Parameter("dictionaries", array(object_of(_DICTIONARY), minItems=1), required=True)
_INFO = fields(source_lang=CODE, target_lang=CODE, entry_count=NUMBER)
_GLOSSARY = fields(
    glossary_id=TEXT, name=TEXT, ready=FLAG, source_lang=CODE, target_lang=CODE, creation_time=TEXT, entry_count=NUMBER
)
_MULTILINGUAL = fields(glossary_id=TEXT, name=TEXT, creation_time=TEXT, dictionaries=array(_INFO))


class DeepLGlossaries:
    """The operations, and the glossaries of requests for translations."""

    def __init__(self, directions: Directions, limits: Limits, clients: Clients, store: GlossaryStore) -> None:
        self.directions, self.limits, self.clients, self.store = directions, limits, clients, store

    def operations(self) -> list[Operation]:
        """Return the operations for a server."""
        create, all, show = "Store a glossary", "List the glossaries of the key", "Describe a glossary"
        delete, entries, rename = "Delete a glossary", "Entries of a glossary", "Rename a glossary, or add terms"
        pair, v2, v3, json = _DICTIONARY[:2], "/v2/glossaries", "/v3/glossaries", "application/json"
        new = _NAME, _DICTIONARIES
        terms = fields(dictionaries=array(object_of([replace(parameter, required=False) for parameter in _DICTIONARY])))
        changes = [replace(parameter, required=False) for parameter in new]
        put, remove = "Store a dictionary", "Delete a dictionary"
        one, several = fields(glossaries=array(_GLOSSARY)), fields(glossaries=array(_MULTILINGUAL))
        return [
            Operation("GET", "/v2/glossary-language-pairs", self.pairs, "List the directions", fields()),
            Operation("GET", v2, self.all, all, one),
            Operation("POST", v2, self.create, create, _GLOSSARY, (_NAME, *_DICTIONARY), status=201),
            Operation("GET", f"{v2}/{{id}}", self.show, show, _GLOSSARY),
            Operation("DELETE", f"{v2}/{{id}}", self.delete, delete, status=204),
            Operation("GET", f"{v2}/{{id}}/entries", self.entries, entries),
            Operation("GET", v3, self.all_multilingual, all, several),
            Operation("POST", v3, self.create_multilingual, create, _MULTILINGUAL, new, forms=json, status=201),
            Operation("GET", f"{v3}/{{id}}", self.show_multilingual, show, _MULTILINGUAL),
            Operation("PATCH", f"{v3}/{{id}}", self.update, rename, _MULTILINGUAL, changes, forms=json),
            Operation("DELETE", f"{v3}/{{id}}", self.delete, delete, status=204),
            Operation(
                "GET", f"{v3}/{{id}}/entries", self.dictionary_entries, "Entries of a dictionary", terms, query=pair
            ),
            Operation("PUT", f"{v3}/{{id}}/dictionaries", self.replace_dictionary, put, _INFO, _DICTIONARY, forms=json),
            Operation("DELETE", f"{v3}/{{id}}/dictionaries", self.delete_dictionary, remove, query=pair, status=204),
        ]

    def of_request(self, client: Client, values: Mapping[str, Any]) -> Glossary | None:
        """Return the glossary that a request for a translation names.  Raises BadRequest."""
        identifier = values.get("glossary_id")
        if not identifier:
            return None
        if not values.get("source_lang"):
            raise BadRequest("Use of a glossary requires the source_lang parameter to be specified")
        stored = _existing(self.store.find(client.owner, str(identifier)))
        return Glossary(_dictionary(stored, language_pair(self.directions, values), 400))

    async def _read(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Return the owner of the glossaries and the parameters of a request."""
        values = parameters(request, await read_body(request, self.limits))
        return self.clients.identify(request, missing=403).owner, values

    async def _stored(self, request: Request) -> tuple[StoredGlossary, dict[str, Any]]:
        owner, values = await self._read(request)
        return _existing(self.store.find(owner, request.path_params["id"])), values

    def _terms(self, values: Any) -> Dictionaries:
        """Return the dictionary that a request describes.  Raises BadRequest and UsageError."""
        if not isinstance(values, dict):
            raise BadRequest("Parameter 'dictionaries' not supported; accepted: a list of objects")
        pair = language_pair(self.directions, values)
        if pair[1] not in self.directions.targets(pair[0]):
            raise BadRequest(f"Glossaries from {pair[0]} to {pair[1]} are not supported: no model translates them")
        return {pair: _entries(values)}

    def _dictionaries(self, values: Mapping[str, Any]) -> Dictionaries:
        dictionaries = values.get("dictionaries")
        if not isinstance(dictionaries, list) or not dictionaries:
            raise BadRequest("Parameter 'dictionaries' not specified; accepted: a list of at least one")
        listed = [row for dictionary in dictionaries for row in self._terms(dictionary).items()]
        if len(dict(listed)) < len(listed):
            raise BadRequest("Parameter 'dictionaries' not supported: two dictionaries have the same languages")
        return dict(listed)

    async def pairs(self, request: Request) -> dict[str, Any]:
        pairs = sorted(self.directions.by_pair)
        return {"supported_languages": [{"source_lang": source, "target_lang": target} for source, target in pairs]}

    async def create(self, request: Request) -> dict[str, Any]:
        owner, values = await self._read(request)
        name = required(values, "name")
        return _shown(await asyncio.to_thread(self.store.add, owner, name, self._terms(values)))

    async def all(self, request: Request) -> dict[str, Any]:
        owned = self.store.owned_by(self.clients.identify(request, missing=403).owner)
        return {"glossaries": [_shown(stored) for stored in owned if len(stored.dictionaries) == 1]}

    async def show(self, request: Request) -> dict[str, Any]:
        return _shown((await self._stored(request))[0])

    async def entries(self, request: Request) -> Response:
        stored, _ = await self._stored(request)
        return Response(_tsv(_only(stored)[1]), media_type="text/tab-separated-values")

    async def delete(self, request: Request) -> Response:
        owner, _ = await self._read(request)
        deleted = await asyncio.to_thread(self.store.delete, owner, request.path_params["id"])
        _existing(deleted or None)
        return Response(status_code=204)

    async def create_multilingual(self, request: Request) -> dict[str, Any]:
        owner, values = await self._read(request)
        name, dictionaries = required(values, "name"), self._dictionaries(values)
        return _shown_multilingual(await asyncio.to_thread(self.store.add, owner, name, dictionaries))

    async def all_multilingual(self, request: Request) -> dict[str, Any]:
        owned = self.store.owned_by(self.clients.identify(request, missing=403).owner)
        return {"glossaries": [*map(_shown_multilingual, owned)]}

    async def show_multilingual(self, request: Request) -> dict[str, Any]:
        return _shown_multilingual((await self._stored(request))[0])

    async def update(self, request: Request) -> dict[str, Any]:
        """Change the name, and add terms to dictionaries; terms that exist are replaced."""
        owner, values = await self._read(request)
        name = required(values, "name") if "name" in values else None
        added = self._dictionaries(values) if "dictionaries" in values else {}

        def change(stored: StoredGlossary) -> StoredGlossary:
            merged = {pair: stored.dictionaries.get(pair, {}) | entries for pair, entries in added.items()}
            return replace(stored, name=name or stored.name, dictionaries={**stored.dictionaries, **merged})

        return _shown_multilingual(await self._changed(owner, request, change))

    async def replace_dictionary(self, request: Request) -> dict[str, Any]:
        owner, values = await self._read(request)
        new = self._terms(values)
        await self._changed(owner, request, lambda stored: replace(stored, dictionaries={**stored.dictionaries, **new}))
        return next(_dictionary_infos(new))

    async def delete_dictionary(self, request: Request) -> Response:
        owner, values = await self._read(request)

        def change(stored: StoredGlossary) -> StoredGlossary:
            pair = language_pair(self.directions, values)
            _dictionary(stored, pair, 404)
            return replace(stored, dictionaries={other: e for other, e in stored.dictionaries.items() if other != pair})

        await self._changed(owner, request, change)
        return Response(status_code=204)

    async def _changed(self, owner: str, request: Request, change: Any) -> StoredGlossary:
        return _existing(await asyncio.to_thread(self.store.change, owner, request.path_params["id"], change))

    async def dictionary_entries(self, request: Request) -> dict[str, Any]:
        stored, values = await self._stored(request)
        source, target = pair = language_pair(self.directions, values)
        entries = _tsv(_dictionary(stored, pair, 404))
        row = {"source_lang": source, "target_lang": target, "entries": entries, "entries_format": "tsv"}
        return {"dictionaries": [row]}


def _existing(stored: Stored | None) -> Stored:
    if stored is None:
        raise BadRequest("Glossary not found", 404)
    return stored


def _dictionary(stored: StoredGlossary, pair: tuple[str, str], status: int) -> dict[str, str]:
    """Return the terms of a glossary for a pair of languages.  Raises BadRequest with `status`."""
    if pair not in stored.dictionaries:
        has = ", ".join(" to ".join(languages) for languages in stored.dictionaries) or "none"
        raise BadRequest(f"The glossary has no dictionary from {pair[0]} to {pair[1]}; it has: {has}", status)
    return stored.dictionaries[pair]


def _only(stored: StoredGlossary) -> tuple[tuple[str, str], dict[str, str]]:
    """Return the only dictionary of a glossary for the routes of version 2.  Raises BadRequest."""
    if len(stored.dictionaries) != 1:
        raise BadRequest(f"The glossary has {len(stored.dictionaries)} dictionaries; use /v3/glossaries")
    return next(iter(stored.dictionaries.items()))


def _shown(stored: StoredGlossary) -> dict[str, Any]:
    (source, target), entries = _only(stored)
    return {
        "glossary_id": stored.id,
        "name": stored.name,
        "ready": True,
        "source_lang": source,
        "target_lang": target,
        "creation_time": stored.created,
        "entry_count": len(entries),
    }


def _shown_multilingual(stored: StoredGlossary) -> dict[str, Any]:
    named = {"glossary_id": stored.id, "name": stored.name, "creation_time": stored.created}
    return {**named, "dictionaries": [*_dictionary_infos(stored.dictionaries)]}


def _dictionary_infos(dictionaries: Dictionaries) -> Iterator[dict[str, Any]]:
    for (source, target), entries in dictionaries.items():
        yield {"source_lang": source, "target_lang": target, "entry_count": len(entries)}


def _tsv(entries: Mapping[str, str]) -> str:
    return "\n".join(f"{source}\t{target}" for source, target in entries.items())


def _entries(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the terms of a request, `entries` in the format `entries_format`.  Raises BadRequest and UsageError."""
    text = required(values, "entries")
    delimiter = {"tsv": "\t", "csv": ","}[_FORMAT.read(values)]
    entries: dict[str, str] = {}
    lines = io.StringIO(text, newline="")
    try:
        if delimiter == "\t":
            rows = list(csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE))
        else:
            rows = list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise BadRequest(f"Invalid glossary entries: {error}") from None
    for number, row in enumerate(filter(None, rows), start=1):
        if len(row) < 2:
            raise BadRequest(f"Invalid glossary entries: line {number} has no target term")
        source = row[0].strip()
        if source in entries:
            raise BadRequest(f"Invalid glossary entries: line {number}: {source[:40]!r} stands before")
        entries[source] = row[1].strip()
    if not entries:
        raise BadRequest("Invalid glossary entries: no entries")
    Glossary(entries)  # raises UsageError for invalid terms
    return entries
