"""Writing of values and annotated documents as TOML."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import tomli_w

from dragoman.config.section import Section

_COLUMN = 44
"""Column of the comments."""


def toml_value(value: Any) -> str:
    """Return a value as TOML in one line, and None as `none`."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        items = ", ".join(f"{_key(str(key))} = {toml_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, str | bool | int | float | datetime.date | datetime.time):
        return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")
    return str(value)


def _key(key: str) -> str:
    """Return a key in TOML, quoted if necessary."""
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def annotated_toml(document: Section, given: Collection[str], preset: str | None = None) -> str:
    """Return the document with all defaults as TOML; a comment states the origin of each value.

    given: dotted keys that were set.  preset: name of the preset, the origin of values of `[model]` that are neither
    set nor defaults.
    """
    lines = []
    for name, section in document:
        usual = type(document).model_fields[name].default
        lines += [f"[{name}]", *_lines(section, usual, f"{name}.", "", given, preset), ""]
    return "\n".join(lines)


def _lines(
    section: Section, usual: Any, prefix: str, inner: str, given: Collection[str], preset: str | None
) -> Iterator[str]:
    """Yield the lines of a section.

    usual: the default section, which may be of another kind.  prefix: dotted name and a dot.  inner: prefix without the
    name in [brackets].
    """
    written = section.model_dump(mode="json")  # leaves out keys without effect
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), prefix + name
        default = None if field.is_required() else field.default
        if isinstance(value, Section) and not hasattr(value, "unit"):
            yield from _lines(value, default, f"{key}.", f"{inner}{name}.", given, preset)
            continue
        if name not in written:
            continue
        if value is None:
            yield f"# {inner}{name}: not set"
            continue
        if name in ("kind", "architecture"):
            default = getattr(usual, name, None)
        is_set = any(one == key or one.startswith(f"{key}.") for one in given)
        origin = _origin(value, default, is_set, preset)
        yield f"{f'{inner}{name} = {toml_value(written[name])}':<{_COLUMN}}  # {origin}"


def _origin(value: Any, default: Any, is_set: bool, preset: str | None) -> str:
    if value == default or (default is None and not is_set):
        return "default"
    if not is_set:
        return f'preset "{preset}"'
    standard = toml_value(str(default) if hasattr(default, "unit") else default)
    return "set" if default is None else f"set; default: {standard}"
