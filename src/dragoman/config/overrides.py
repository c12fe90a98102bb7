"""`key=value` overrides of a configuration document, applied before validation."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel

from dragoman.config.errors import models_at, shown, tag_of
from dragoman.errors import clip

_DEEPEST = 8
_ONE_LINE = "an override sets one key and must be a single line; pass each key=value as a separate argument"


def apply_overrides(document: dict[str, Any], overrides: Iterable[str], root: type[BaseModel]) -> list[str]:
    """Apply `key=value` overrides to a document of the model `root`; return the problems.

    Kinds are applied first, so that the order of overrides does not matter.  A new kind removes the other keys of its
    section; a new architecture removes the keys that it does not have.
    """
    overrides = [overrides] if isinstance(overrides, str | bytes) or not isinstance(overrides, Iterable) else overrides
    texts = list(overrides)
    problems = [f"override {text!r:.60}: must be a str, key=value" for text in texts if not isinstance(text, str)]
    pairs = [text.partition("=") for text in texts if isinstance(text, str)]
    problems += _not_overrides(["".join(pair) for pair in pairs])
    pairs = [pair for pair in pairs if pair[1] and pair[0].strip()]
    for key, _, value in sorted(pairs, key=lambda pair: not pair[0].strip().endswith((".kind", ".architecture"))):
        *parents, last = key.strip().split(".")
        try:
            if len(parents) >= _DEEPEST:
                raise ValueError(f"a key with {len(parents) + 1:,} parts; no setting has more than {_DEEPEST}")
            section, parsed = _section(document, parents), _parsed(value)
        except ValueError as error:
            problems.append(f"{clip(key.strip())}: {error}")
            continue
        if last in ("kind", "architecture") and section.get(last) != parsed:
            _remove_other_keys(section, models_at(root, parents), parsed)
        section[last] = parsed
    return problems


def _not_overrides(texts: list[str]) -> Iterator[str]:
    """Yield a message for each text without a key or `=`, which may follow a value that was not quoted."""
    previous = ""
    for text in texts:
        key, equals, _ = text.partition("=")
        if equals and key.strip():
            previous = text
            continue
        advice = "write key=value, such as train.seed=2"
        if previous and key.strip():
            advice += f"; a value that contains spaces is quoted: {shlex.quote(clip(f'{previous} {text}'))}"
        yield f"{clip(text)!r}: not an override; {advice}"


def _remove_other_keys(section: dict[str, Any], models: list[type[BaseModel]], tag: Any) -> None:
    """Remove the keys that the variant `tag` of `models` does not share with the others."""
    if len(models) < 2:
        return
    chosen = next((m for m in models if tag_of(m) == tag), None)
    # Sizes mean the same in all architectures, but a key such as `eps` differs between kinds.
    shared = chosen.model_fields if chosen is not None and "architecture" in chosen.model_fields else {}
    for key in section.keys() - shared.keys():
        del section[key]


def _parsed(value: str) -> Any:
    """Return a value as TOML reads it; anything that is not TOML is a string, so that quotes are optional.

    Raises ValueError for several values and for deep nesting.
    """
    try:
        document = tomllib.loads(f"x = {value}")
    except RecursionError:
        raise ValueError(f"{clip(value)!r}: brackets nested too deeply; accepted: two levels") from None
    except ValueError:  # not TOML, or an integer of thousands of digits
        if "\n" in value.strip():
            raise ValueError(f"{clip(value)!r}: {_ONE_LINE}") from None
        return value.strip()
    if document.keys() != {"x"}:
        raise ValueError(f"{clip(value)!r}: {_ONE_LINE}")
    return document["x"]


def _section(document: dict[str, Any], parents: list[str]) -> dict[str, Any]:
    """Return the section at `parents`, created if needed.  Raises ValueError if the path leads through a value."""
    section: Any = document
    for i, part in enumerate(parents):
        if isinstance(section, dict):
            section = section.setdefault(part, {})
        elif isinstance(section, list) and re.fullmatch("[0-9]{1,9}", part) and int(part) < len(section):
            section = section[int(part)]
        else:
            unusable = "no such index" if isinstance(section, list) else "no such key"
            raise ValueError(f"{clip(part)!r}: {unusable}; {'.'.join(parents[:i])} is {_described(section)}")
    if not isinstance(section, dict):
        raise ValueError(f"{'.'.join(parents)} is {_described(section)}")
    return section


def _described(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}, indexed from 0"
    return f"a value ({shown(value)}), not a section"
