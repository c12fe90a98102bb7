"""`key=value` on the command line, put into a configuration document before it is checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from dragoman.config.errors import models_at, shown, tag_of
from dragoman.errors import clip

__all__ = ["apply_overrides"]

_DEEPEST = 8
_ONE_LINE = "an override sets one key and must be a single line; pass each key=value as a separate argument"


def apply_overrides(document: dict[str, Any], overrides: Iterable[str], root: type[BaseModel]) -> list[str]:
    """Put `key=value` into the document; kinds first, so that the order of overrides does not matter.

    With a new kind the section's other keys are forgotten; with a new architecture those that it does not have.

    Returns the problems, one a sentence; root: the model that the document is of.
    """
    problems = []
    pairs = [text.partition("=") for text in overrides]
    for key, equals, value in sorted(pairs, key=lambda pair: not pair[0].strip().endswith((".kind", ".architecture"))):
        if not equals or not key.strip():
            problems.append(f"{clip(key + equals + value)!r}: an override is written key=value, such as train.seed=2")
            continue
        *parents, last = key.strip().split(".")
        name = clip(key.strip())
        if len(parents) >= _DEEPEST:
            problems.append(f"{name}: {len(parents) + 1:,} parts; no key of a configuration has more than {_DEEPEST}")
            continue
        place = _place(document, parents)
        if isinstance(place, str):
            problems.append(f"{name}: {place}")
            continue
        try:
            parsed = _parsed(value)
        except ValueError as error:
            problems.append(f"{name} = {clip(repr(value))}: {error}")
            continue
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
    """A value as TOML reads it; what is not TOML is a string, so that quotes are not needed.

    Raises `ValueError` for more than one value, and for one that is nested too deeply.
    """
    try:
        document = tomllib.loads(f"x = {value}")
    except RecursionError:
        raise ValueError("brackets nested too deeply; no setting needs more than two levels") from None
    except ValueError:  # not TOML, or an integer of thousands of digits
        if "\n" in value.strip():
            raise ValueError(_ONE_LINE) from None
        return value.strip()
    if document.keys() != {"x"}:
        raise ValueError(_ONE_LINE)
    return document["x"]


def _place(document: dict[str, Any], parents: list[str]) -> dict[str, Any] | str:
    """The section that `parents` lead to, made where it is missing; or what is wrong with them."""
    place: Any = document
    for i, part in enumerate(parents):
        if isinstance(place, dict):
            place = place.setdefault(part, {})
        elif isinstance(place, list) and (at := _index(part)) is not None and at < len(place):
            place = place[at]
        else:
            return f"{clip(part)!r} leads nowhere; {'.'.join(parents[:i])} is {_what(place)}"
    return place if isinstance(place, dict) else f"{'.'.join(parents)} is {_what(place)}"


def _index(part: str) -> int | None:
    """The number of a list's item; other digits than 0 to 9, and numbers of any length, are not one."""
    return int(part) if part.isascii() and part.isdigit() and len(part) < 10 else None


def _what(place: Any) -> str:
    return (
        f"a list of {len(place)}, counted from 0"
        if isinstance(place, list)
        else f"a value ({shown(place)}), not a section"
    )
