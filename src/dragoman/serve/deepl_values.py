"""Parameters of DeepL's interface that several of its routes have, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.serve.answers import ErrorFormat
from dragoman.serve.directions import Directions
from dragoman.serve.languages import model_code
from dragoman.serve.requests import BadRequest

__all__ = ["DEEPL_ERRORS", "language_pair", "required", "source_language", "target_language"]

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
