"""`key=value` on the command line, put into a configuration document before it is checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from dragoman.config.errors import models_at, tag_of

__all__ = ["apply_overrides"]


def apply_overrides(document: dict[str, Any], overrides: Iterable[str], root: type[BaseModel]) -> list[str]:
    """Put `key=value` into the document; kinds first, so that the order of overrides does not matter.

    With a new kind the section's other keys are forgotten; with a new architecture those that it does not have.

    Returns the problems, one a sentence; root: the model that the document is of.
    """
    problems = []
    pairs = [text.partition("=") for text in overrides]
    for key, equals, value in sorted(pairs, key=lambda pair: not pair[0].strip().endswith((".kind", ".architecture"))):
        if not equals or not key.strip():
            problems.append(f"{key + equals + value!r}: an override is written key=value, such as train.seed=2")
            continue
        *parents, last = key.strip().split(".")
        place = _place(document, parents)
        if isinstance(place, str):
            problems.append(f"{key.strip()}: {place}")
            continue
        parsed = _parsed(value)
        if last in ("kind", "architecture") and place.get(last) != parsed:
            _forget(place, models_at(root, parents), parsed)
        place[last] = parsed
    return problems


def _forget(place: dict[str, Any], models: list[type[BaseModel]], tag: Any) -> None:
    """Take out the keys that mean nothing on the variant `tag` of `models`."""
    if len(models) < 2:
        return
    chosen = next((m for m in models if tag_of(m) == tag), None)
    keeps = chosen is not None and "architecture" in chosen.model_fields  # sizes mean the same on all architectures
    for key in list(place):
        if not (keeps and chosen is not None and key in chosen.model_fields):
            del place[key]


def _parsed(value: str) -> Any:
    """A value as TOML would read it; what is no TOML is a string, so that quotes are not needed."""
    try:
        return tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return value.strip()


def _place(document: dict[str, Any], parents: list[str]) -> dict[str, Any] | str:
    """The section that `parents` lead to, made where it is missing; or what is wrong with them."""
    place: Any = document
    for i, part in enumerate(parents):
        if isinstance(place, dict):
            place = place.setdefault(part, {})
        elif isinstance(place, list) and part.isdigit() and int(part) < len(place):
            place = place[int(part)]
        else:
            return f"{part!r} leads nowhere; {'.'.join(parents[:i])} is {_what(place)}"
    return place if isinstance(place, dict) else f"{'.'.join(parents)} is {_what(place)}"


def _what(place: Any) -> str:
    return (
        f"a list of {len(place)}, counted from 0" if isinstance(place, list) else f"a value ({place!r}), not a section"
    )
