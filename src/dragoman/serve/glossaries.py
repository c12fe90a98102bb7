"""Glossaries of DeepL's interface: of one direction (version 2), and of several that can be changed (version 3)."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from starlette.responses import Response

from dragoman.errors import UsageError
from dragoman.pipelines.glossary import Glossary
from dragoman.serve.admission import Call, Client
from dragoman.serve.database import Dictionaries, GlossaryStore, StoredGlossary
from dragoman.serve.directions import Directions, model_code
from dragoman.serve.http import BadRequest, ErrorFormat, Parameter
from dragoman.serve.operations import CODE, FLAG, NOT_EMPTY, NUMBER, TEXT, Operation, array, fields, object_of

Shown = Callable[[StoredGlossary], dict[str, Any]]
"""Describes a glossary as a version of the interface does."""
DEEPL_ERRORS = ErrorFormat("message", 456, 403, failure="translation failed: ")


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
    Parameter("source_lang", CODE, required=True), Parameter("target_lang", CODE, required=True),
    Parameter("entries", {**NOT_EMPTY, "description": "a source and a target term per line"}, required=True), _FORMAT,
)  # fmt: skip
_DICTIONARIES = Parameter("dictionaries", array(object_of(_DICTIONARY), minItems=1), required=True)
_INFO = fields(source_lang=CODE, target_lang=CODE, entry_count=NUMBER)
_GLOSSARY = fields(
    glossary_id=TEXT, name=TEXT, ready=FLAG, source_lang=CODE, target_lang=CODE, creation_time=TEXT, entry_count=NUMBER
)
_MULTILINGUAL = fields(glossary_id=TEXT, name=TEXT, creation_time=TEXT, dictionaries=array(_INFO))


class DeepLGlossaries:
    """The operations, and the glossaries of requests for translations."""

    def __init__(self, directions: Directions, store: GlossaryStore) -> None:
        self.directions, self.store = directions, store

    def operations(self) -> list[Operation]:
        create, all, show = "Store a glossary", "List the glossaries of the key", "Describe a glossary"
        delete, entries, rename = "Delete a glossary", "Entries of a glossary", "Rename a glossary, or add terms"
        pair, v2, v3, json = _DICTIONARY[:2], "/v2/glossaries", "/v3/glossaries", "application/json"
        new = _NAME, _DICTIONARIES
        terms = fields(dictionaries=array(object_of([replace(parameter, required=False) for parameter in _DICTIONARY])))
        changes = [replace(parameter, required=False) for parameter in new]
        put, remove, of_one = "Store a dictionary", "Delete a dictionary", "Entries of a dictionary"
        one, several = fields(glossaries=array(_GLOSSARY)), fields(glossaries=array(_MULTILINGUAL))
        create_one = partial(self.create, self._terms, _shown)
        create_several = partial(self.create, self._dictionaries, _shown_multilingual)
        all_of_v2, all_of_v3 = partial(self.all, _shown), partial(self.all, _shown_multilingual)
        show_one, show_several = partial(self.show, _shown), partial(self.show, _shown_multilingual)
        return [
            Operation("GET", "/v2/glossary-language-pairs", self.pairs, "List the directions", fields()),
            Operation("GET", v2, all_of_v2, all, one),
            Operation("POST", v2, create_one, create, _GLOSSARY, (_NAME, *_DICTIONARY), status=201),
            Operation("GET", f"{v2}/{{id}}", show_one, show, _GLOSSARY),
            Operation("DELETE", f"{v2}/{{id}}", self.delete, delete, status=204),
            Operation("GET", f"{v2}/{{id}}/entries", self.entries, entries),
            Operation("GET", v3, all_of_v3, all, several),
            Operation("POST", v3, create_several, create, _MULTILINGUAL, new, forms=json, status=201),
            Operation("GET", f"{v3}/{{id}}", show_several, show, _MULTILINGUAL),
            Operation("PATCH", f"{v3}/{{id}}", self.update, rename, _MULTILINGUAL, changes, forms=json),
            Operation("DELETE", f"{v3}/{{id}}", self.delete, delete, status=204),
            Operation("GET", f"{v3}/{{id}}/entries", self.dictionary_entries, of_one, terms, query=pair),
            Operation("PUT", f"{v3}/{{id}}/dictionaries", self.replace_dictionary, put, _INFO, _DICTIONARY, forms=json),
            Operation("DELETE", f"{v3}/{{id}}/dictionaries", self.delete_dictionary, remove, query=pair, status=204),
        ]  # fmt: skip

    def of_request(self, client: Client, values: Mapping[str, Any]) -> Glossary | None:
        """Return the glossary that a request for a translation names.  Raises BadRequest."""
        identifier = values.get("glossary_id")
        if not identifier:
            return None
        if not values.get("source_lang"):
            raise BadRequest("Use of a glossary requires the source_lang parameter to be specified")
        stored = _existing(self.store.find(client.owner, str(identifier)))
        return checked_glossary(_dictionary(stored, language_pair(self.directions, values), 400))

    def _stored(self, call: Call) -> StoredGlossary:
        return _existing(self.store.find(call.client.owner, call.request.path_params["id"]))

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

    async def pairs(self, call: Call) -> dict[str, Any]:
        pairs = sorted(self.directions.by_pair)
        return {"supported_languages": [{"source_lang": source, "target_lang": target} for source, target in pairs]}

    async def create(self, read: Callable[[Any], Dictionaries], shown: Shown, call: Call) -> dict[str, Any]:
        name, dictionaries = required(call.values, "name"), read(call.values)
        return shown(await asyncio.to_thread(self.store.add, call.client.owner, name, dictionaries))

    async def all(self, shown: Shown, call: Call) -> dict[str, Any]:
        owned = self.store.owned_by(call.client.owner)
        return {"glossaries": [shown(one) for one in owned if shown is not _shown or len(one.dictionaries) == 1]}

    async def show(self, shown: Shown, call: Call) -> dict[str, Any]:
        return shown(self._stored(call))

    async def entries(self, call: Call) -> Response:
        return Response(_tsv(_only(self._stored(call))[1]), media_type="text/tab-separated-values")

    async def delete(self, call: Call) -> Response:
        if not await asyncio.to_thread(self.store.delete, call.client.owner, call.request.path_params["id"]):
            raise BadRequest("Glossary not found", 404)
        return Response(status_code=204)

    async def update(self, call: Call) -> dict[str, Any]:
        """Change the name, and add terms to dictionaries; terms that exist are replaced."""
        name = required(call.values, "name") if "name" in call.values else None
        added = self._dictionaries(call.values) if "dictionaries" in call.values else {}

        def change(stored: StoredGlossary) -> StoredGlossary:
            merged = {pair: stored.dictionaries.get(pair, {}) | entries for pair, entries in added.items()}
            for entries in merged.values():
                checked_glossary(entries)
            return replace(stored, name=name or stored.name, dictionaries={**stored.dictionaries, **merged})

        return _shown_multilingual(await self._changed(call, change))

    async def replace_dictionary(self, call: Call) -> dict[str, Any]:
        new = self._terms(call.values)
        await self._changed(call, lambda stored: replace(stored, dictionaries={**stored.dictionaries, **new}))
        return next(_dictionary_infos(new))

    async def delete_dictionary(self, call: Call) -> Response:
        def change(stored: StoredGlossary) -> StoredGlossary:
            pair = language_pair(self.directions, call.values)
            _dictionary(stored, pair, 404)
            return replace(stored, dictionaries={other: e for other, e in stored.dictionaries.items() if other != pair})

        await self._changed(call, change)
        return Response(status_code=204)

    async def _changed(self, call: Call, change: Any) -> StoredGlossary:
        owner, identifier = call.client.owner, call.request.path_params["id"]
        return _existing(await asyncio.to_thread(self.store.change, owner, identifier, change))

    async def dictionary_entries(self, call: Call) -> dict[str, Any]:
        source, target = pair = language_pair(self.directions, call.values)
        entries = _tsv(_dictionary(self._stored(call), pair, 404))
        row = {"source_lang": source, "target_lang": target, "entries": entries, "entries_format": "tsv"}
        return {"dictionaries": [row]}


def _existing(stored: StoredGlossary | None) -> StoredGlossary:
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
    _only(stored)
    described = _shown_multilingual(stored)
    (dictionary,) = described.pop("dictionaries")
    return {**described, "ready": True, **dictionary}


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
    lines = io.StringIO(required(values, "entries"), newline="")
    entries: dict[str, str] = {}
    options: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if _FORMAT.read(values) == "tsv" else {"strict": True}
    try:
        rows = list(csv.reader(lines, **options))
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
    checked_glossary(entries)
    return entries


_MAX_ENTRIES = 10_000


def checked_glossary(entries: Any, strict: bool = False) -> Glossary:
    """Return the glossary of a request, the same one for equal terms, because it is compiled at its first use.

    Raises UsageError for invalid or too many terms.
    """
    if isinstance(entries, dict) and len(entries) > _MAX_ENTRIES:
        raise UsageError(f"the glossary has {len(entries):,} entries; accepted: at most {_MAX_ENTRIES:,}")
    try:
        return _cached_glossary(tuple(entries.items()), strict)
    except (AttributeError, TypeError):  # not a mapping, or values that cannot be hashed
        return Glossary(entries, strict)


@lru_cache(maxsize=16)
def _cached_glossary(entries: tuple[tuple[str, str], ...], strict: bool) -> Glossary:
    return Glossary(dict(entries), strict)
