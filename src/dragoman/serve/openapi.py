"""The OpenAPI description of the server, at /spec."""

from __future__ import annotations

from functools import partial
from typing import Any

from dragoman._version import __version__

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_NOT_EMPTY: _Schema = {**_TEXT, "minLength": 1}
_FLAG: _Schema = {"type": "boolean"}
_CODE: _Schema = {**_NOT_EMPTY, "description": "code of a language, such as en"}
_TEXTS: _Schema = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_NUMBER: _Schema = {"type": "integer"}
_ID: _Schema = {"name": "id", "in": "path", "required": True, "schema": _TEXT}


_MULTIPART = "multipart/form-data"


def _object(required: str = "", **properties: _Schema) -> _Schema:
    return {"type": "object", "properties": properties, "required": required.split()} if required else {
        "type": "object", "properties": properties}  # fmt: skip


def _array(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


_TERM = _object(source=_TEXT, target=_TEXT, applied=_FLAG)
_TRANSLATE = _object(
    "q source target",
    q={**_TEXTS, "description": "a text or a list of texts"},
    source={**_CODE, "description": "source language, or auto"},
    target=_CODE,
    format={"enum": ["text", "html"], "default": "text"},
    alternatives={"type": "integer", "minimum": 0, "maximum": 16, "default": 0},
    glossary={"type": "object", "additionalProperties": _TEXT, "description": "target terms by source terms"},
    glossary_mode={"enum": ["soft", "strict"], "default": "soft"},
    stream={**_FLAG, "default": False, "description": "answer with server-sent events, as with Accept"},
    api_key=_TEXT,
)
_EVENTS = {
    "type": "string",
    "description": 'with stream or Accept: text/event-stream. Events "part" with {index, text}: the next piece of the '
    'translation of the text with that index; then "done" with the JSON answer, or "error" with {error, status}',
}
_TRANSLATED = _object(
    "translatedText",
    translatedText={**_TEXTS, "description": "a list if q is a list, like all values of the answer"},
    detectedLanguage={"description": "with source = auto"},
    alternatives={"description": "if requested"},
    glossary={"description": "with a glossary: its terms in the text, and whether they were applied"},
)
_DETECTED = _array(_object(confidence={"type": "number", "minimum": 0, "maximum": 100}, language=_CODE))
_LANGUAGES = _array(_object(code=_CODE, name=_TEXT, targets=_array(_CODE)))
_UPLOAD = _object(
    "file source target",
    file={"type": "string", "format": "binary"},
    source={**_CODE, "description": "source language, or auto"},
    target=_CODE,
    glossary={**_TEXT, "description": "a JSON object of target terms by source terms"},
    glossary_mode={"enum": ["soft", "strict"], "default": "soft"},
    api_key=_TEXT,
)
_UPLOADED = _object(
    "translatedFileUrl",
    translatedFileUrl=_TEXT,
    detectedLanguage={"description": "with source = auto"},
    glossary={"description": "with a glossary: its terms in the document, their occurrences, and whether applied"},
)
_SUGGESTION = _object(
    "q s source target",
    q={**_NOT_EMPTY, "description": "the text"},
    s={**_NOT_EMPTY, "description": "its translation"},
    source={**_CODE, "description": "source language, or auto"},
    target=_CODE,
    api_key=_TEXT,
)
_DEEPL_TRANSLATE = _object(
    "text target_lang",
    text={**_array(_TEXT), "minItems": 1, "maxItems": 50},
    source_lang=_CODE,
    target_lang=_CODE,
    split_sentences={"enum": ["0", "1", "nonewlines"], "default": "1"},
    glossary_id=_TEXT,
    tag_handling={"enum": ["html", "xml"]},
    outline_detection=_FLAG,
    ignore_tags=_array(_TEXT),
    splitting_tags=_array(_TEXT),
    non_splitting_tags=_array(_TEXT),
    model_type={"enum": ["quality_optimized", "prefer_quality_optimized", "latency_optimized"]},
)
_DEEPL_TRANSLATED = _object(
    translations=_array(
        _object(
            detected_source_language=_CODE,
            text=_TEXT,
            billed_characters=_NUMBER,
            model_type_used={**_TEXT, "description": "with model_type"},
        )
    )
)
_GLOSSARY = _object(
    glossary_id=_TEXT,
    name=_TEXT,
    ready=_FLAG,
    source_lang=_CODE,
    target_lang=_CODE,
    creation_time=_TEXT,
    entry_count=_NUMBER,
)
_DICTIONARY: dict[str, _Schema] = {
    "source_lang": _CODE,
    "target_lang": _CODE,
    "entries": {**_NOT_EMPTY, "description": "a source and a target term per line"},
    "entries_format": {"enum": ["tsv", "csv"], "default": "tsv"},
}
_NEW_GLOSSARY = _object("name source_lang target_lang entries", name=_NOT_EMPTY, **_DICTIONARY)
_NEW_DICTIONARY = _object("source_lang target_lang entries", **_DICTIONARY)
_DICTIONARY_INFO = _object(source_lang=_CODE, target_lang=_CODE, entry_count=_NUMBER)
_MULTILINGUAL = _object(glossary_id=_TEXT, name=_TEXT, creation_time=_TEXT, dictionaries=_array(_DICTIONARY_INFO))
_CHANGES: dict[str, _Schema] = {"name": _NOT_EMPTY, "dictionaries": {**_array(_NEW_DICTIONARY), "minItems": 1}}
_PAIR = tuple(
    {"name": name, "in": "query", "required": True, "schema": _CODE} for name in ("source_lang", "target_lang")
)
_DEEPL_UPLOAD = _object(
    "file target_lang",
    file={"type": "string", "format": "binary"},
    source_lang={**_CODE, "description": "source language; without it, it is identified"},
    target_lang=_CODE,
    glossary_id=_TEXT,
)
_STATUS = _object(
    document_id=_TEXT, status={"enum": ["translating", "done", "error"]}, billed_characters=_NUMBER, error_message=_TEXT
)
_DOCUMENT_KEY = _object("document_key", document_key=_TEXT)


def _operation(
    summary: str,
    answer: _Schema | None = None,
    body: _Schema | None = None,
    forms: str = "application/json application/x-www-form-urlencoded",
    deepl: bool = False,
    parameters: tuple[_Schema, ...] = (),
    status: int = 200,
) -> _Schema:
    """Return an operation.  answer: schema of the JSON answer; None = a file or nothing.  forms: types of the body."""
    error = {"$ref": f"#/components/responses/{'DeepLError' if deepl else 'Error'}"}
    done: _Schema = {"description": "done"}
    if answer is not None:
        done["content"] = {"application/json": {"schema": answer}}
    operation: _Schema = {"summary": summary, "responses": {str(status): done, "default": error}}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {form: {"schema": body} for form in forms.split()}}
    if parameters:
        operation["parameters"] = list(parameters)
    if deepl:
        operation["security"] = [{}, {"key": []}]
    return operation


def _get_or_post(operation: _Schema) -> _Schema:
    """Return the methods of a route that some clients send with POST, without a body."""
    return {"get": operation, "post": operation}


def _error(key: str) -> _Schema:
    schema = _object(key, **{key: _TEXT})
    return {"description": "an error", "content": {"application/json": {"schema": schema}}}


def _multilingual_glossaries() -> _Schema:
    deepl, json = partial(_operation, deepl=True), "application/json"
    new, changes = _object("name dictionaries", **_CHANGES), _object("", **_CHANGES)
    entries = _object(dictionaries=_array(_object("", **_DICTIONARY)))
    return {
        "/v3/glossaries": {
            "get": deepl("List the glossaries of the key", _object(glossaries=_array(_MULTILINGUAL))),
            "post": deepl("Store a glossary", _MULTILINGUAL, new, json, status=201),
        },
        "/v3/glossaries/{id}": {
            "get": deepl("Describe a glossary", _MULTILINGUAL, parameters=(_ID,)),
            "patch": deepl("Rename a glossary, or add terms", _MULTILINGUAL, changes, json, parameters=(_ID,)),
            "delete": deepl("Delete a glossary", parameters=(_ID,), status=204),
        },
        "/v3/glossaries/{id}/entries": {
            "get": deepl("Entries of a dictionary", entries, parameters=(_ID, *_PAIR)),
        },
        "/v3/glossaries/{id}/dictionaries": {
            "put": deepl("Store a dictionary", _DICTIONARY_INFO, _NEW_DICTIONARY, json, parameters=(_ID,)),
            "delete": deepl("Delete a dictionary", parameters=(_ID, *_PAIR), status=204),
        },
    }


def _libretranslate() -> _Schema:
    """Return the routes of LibreTranslate's interface, and those for operators."""
    ok = _object(status=_TEXT)
    name = {**_ID, "name": "name"}
    translate = _operation("Translate texts", _TRANSLATED, _TRANSLATE)
    translate["responses"]["200"]["content"]["text/event-stream"] = {"schema": _EVENTS}
    return {
        "/translate": {"post": translate},
        "/detect": {
            "post": _operation("Identify the language of a text", _DETECTED, _object("q", q=_NOT_EMPTY, api_key=_TEXT))
        },
        "/languages": _get_or_post(_operation("List the languages", _LANGUAGES)),
        "/translate_file": {"post": _operation("Translate a document", _UPLOADED, _UPLOAD, _MULTIPART)},
        "/suggest": {"post": _operation("Suggest a better translation", _object(success=_FLAG), _SUGGESTION)},
        "/download_file/{name}": {"get": _operation("Fetch a translated document", parameters=(name,))},
        "/frontend/settings": {"get": _operation("Limits and features of the server", _object())},
        "/health": {"get": _operation("LibreTranslate's health check", ok)},
        "/livez": {"get": _operation("Whether the process runs", ok)},
        "/readyz": {"get": _operation("Whether requests are accepted", ok)},
        "/metrics": {"get": _operation("Metrics in Prometheus' text format")},
    }


def _deepl() -> _Schema:
    """Return the routes of DeepL's interface."""
    deepl = partial(_operation, deepl=True)
    return {
        "/v2/translate": {"post": deepl("Translate texts", _DEEPL_TRANSLATED, _DEEPL_TRANSLATE)},
        "/v2/languages": _get_or_post(deepl("List the languages", _array(_object(language=_CODE, name=_TEXT)))),
        "/v2/usage": _get_or_post(
            deepl("Characters of the key", _object(character_count=_NUMBER, character_limit=_NUMBER))
        ),
        "/v2/glossary-language-pairs": {"get": deepl("List the directions", _object())},
        "/v2/glossaries": {
            "get": deepl("List the glossaries of the key", _object(glossaries=_array(_GLOSSARY))),
            "post": deepl("Store a glossary", _GLOSSARY, _NEW_GLOSSARY, status=201),
        },
        "/v2/glossaries/{id}": {
            "get": deepl("Describe a glossary", _GLOSSARY, parameters=(_ID,)),
            "delete": deepl("Delete a glossary", parameters=(_ID,), status=204),
        },
        "/v2/glossaries/{id}/entries": {"get": deepl("Entries of a glossary", parameters=(_ID,))},
        **_multilingual_glossaries(),
        "/v2/document": {
            "post": deepl(
                "Translate a document",
                _object(document_id=_TEXT, document_key=_TEXT),
                _DEEPL_UPLOAD,
                _MULTIPART,
            )
        },
        "/v2/document/{id}": {"post": deepl("State of a document", _STATUS, _DOCUMENT_KEY, parameters=(_ID,))},
        "/v2/document/{id}/result": {
            "post": deepl("Fetch a translated document", None, _DOCUMENT_KEY, parameters=(_ID,))
        },
    }


def description() -> _Schema:
    """Return the document (OpenAPI 3.1)."""
    key = {"type": "apiKey", "in": "header", "name": "Authorization", "description": "DeepL-Auth-Key KEY"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dragoman", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": _libretranslate() | _deepl(),
        "components": {
            "responses": {"Error": _error("error"), "DeepLError": _error("message")},
            "securitySchemes": {"key": key},
        },
    }
