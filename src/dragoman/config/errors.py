"""What pydantic found wrong with a configuration, in words: where, what, what would be accepted, the nearest name."""

from __future__ import annotations

import re
import reprlib
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel

from dragoman.errors import clip, nearest

__all__ = ["describe", "models_at", "shown", "tag_of"]


_WANTED = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a whole number",
    "bool_for_number": "must be a number, not true or false",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text, in quotes",
    "model_type": "must be a section with keys of its own",
    "model_attributes_type": "must be a section with keys of its own",
}
_OUT_OF_RANGE = (
    "greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of", "finite_number",
)  # fmt: skip


def describe(error: dict[str, Any], root: type[BaseModel]) -> str:
    """One of pydantic's errors on a document of the model `root`, as a sentence for the person who wrote it."""
    loc: tuple[Any, ...] = tuple(error["loc"])
    section, path = _walk(loc, root)
    kind, value = error["type"], error.get("input")
    name = ".".join(clip(part, 60) for part in path)
    context = error.get("ctx") or {}
    if kind == "extra_forbidden":
        known = sorted(section.model_fields if section else [], key=lambda key: key not in ("kind", "architecture"))
        return f"{name}: no such key{nearest(path[-1], known)}; accepted here: {', '.join(known)}"
    if kind == "too_short":
        return f"{name} = {shown(value)}: empty; at least one must be given"
    if kind == "missing":
        return f"{name}: missing; it must be given"
    if kind == "union_tag_not_found":
        return f"{name}.kind: missing; accepted: {', '.join(_kinds_at(root, loc))}"
    if kind == "union_tag_invalid":
        accepted = str(context.get("expected_tags", "")).replace("'", "")
        got, tag = context.get("tag", "nothing"), str(context.get("discriminator", "kind")).strip("'")
        return f"{name}.{tag}: no {tag} {shown(got)}{nearest(str(got), accepted.split(', '))}; accepted: {accepted}"
    if kind == "literal_error":
        expected = str(context.get("expected", ""))
        choices = re.findall("'([^']*)'", expected)
        near = nearest(value, choices) if isinstance(value, str) else ""
        return f"{name} = {shown(value)}{near}; accepted: {expected}"
    if kind in _WANTED:
        kinds = _kinds_at(root, loc) if kind.startswith("model_") else []
        wanted = f"write {name}.kind = ..., one of {', '.join(kinds)}" if kinds else _WANTED[kind]
        limits = "" if kinds else _range(section, path)
        return f"{name} = {shown(value)}: {wanted}{limits and f'; accepted: {limits}'}"
    if kind in _OUT_OF_RANGE and (limits := _range(section, path)):
        return f"{name} = {shown(value)}: out of range; accepted: {limits}"
    if kind == "string_pattern_mismatch" and path[-1] == "device":
        return f"{name} = {shown(value)}: no such device; accepted: auto, cpu, cuda, cuda:1, mps, xpu, hpu"
    message = str(error["msg"]).removeprefix("Value error, ")
    given = "" if isinstance(value, dict) else f" = {shown(value)}"
    if not name:  # what is wrong is between two sections, and the message names both
        return message
    return f"{name}{given}: {message[0].lower() + message[1:]}" if message else name


def shown(value: Any) -> str:
    """A value in a message, as it is written in TOML and never longer than a line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of about {int(value.bit_length() * 0.30103):,} digits"
    if isinstance(value, list | tuple | dict):
        return reprlib.repr(value)
    return clip(repr(value))


def _range(section: type[BaseModel] | None, path: Sequence[str]) -> str:
    """The limits of a number, such as "1 to 65,536"; empty where the field has none."""
    field = section.model_fields.get(path[-1]) if section is not None and path else None
    if field is None:
        return ""
    bounds = {name: limit for part in _metadata(field) for name, limit in _bounds(part)}
    if not bounds.keys() & {"ge", "gt"} or "le" not in bounds:
        return ""
    least = _number(bounds["ge"]) if "ge" in bounds else f"more than {_number(bounds['gt'])}"
    multiple = f", a multiple of {bounds['multiple_of']}" if "multiple_of" in bounds else ""
    return f"{least} to {_number(bounds['le'])}{multiple}"


def _metadata(field: Any) -> list[Any]:
    """What is attached to a field's type; for `X | None` what is attached to X."""
    inside = [m for part in typing.get_args(field.annotation) for m in getattr(part, "__metadata__", ())]
    return [m for part in (*field.metadata, *inside) for m in (part.metadata if hasattr(part, "metadata") else [part])]


def _bounds(part: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(part, name)) for name in ("ge", "gt", "le", "multiple_of") if hasattr(part, name)]


def _number(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:,.0f}" if 1000 <= limit < 1e15 else f"{limit:g}"


def _walk(loc: tuple[Any, ...], root: type[BaseModel]) -> tuple[type[BaseModel] | None, list[str]]:
    """The section a pydantic location ends in, and the location as a user writes it (union tags left out)."""
    section: type[BaseModel] | None = root
    path: list[str] = []
    options: list[type[BaseModel]] = []
    for part in loc:
        tagged = next((o for o in options if tag_of(o) == part), None)
        if tagged is not None:
            section, options = tagged, []
            continue
        path.append(str(part))
        if isinstance(part, int) or section is None or part not in section.model_fields:
            continue
        models = _models_in(section.model_fields[part].annotation)
        following = next(iter(loc[loc.index(part) + 1 :]), None)
        if len(models) > 1:
            options = models
        elif models and following is not None:
            section = models[0]
    return section, path


def tag_of(model: type[BaseModel]) -> str:
    """What tells a variant from the others: the value of its `architecture` or `kind`."""
    field = model.model_fields.get("architecture") or model.model_fields["kind"]
    return str(field.default)


def models_at(root: type[BaseModel], path: Sequence[Any]) -> list[type[BaseModel]]:
    """The models that the section at `path` may be of; none where `path` leads to no section."""
    models = [root]
    for part in path:
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        if fields:
            models = list(dict.fromkeys(m for field in fields for m in _models_in(field.annotation)))
        elif not (str(part).isascii() and str(part).isdigit()):
            return []
    return models


def _kinds_at(root: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """The kinds that the section at `path` comes in; none where it comes in one form only."""
    # A location of pydantic's names the variants it passed, which are no keys.
    tags = {tag_of(m) for m in _variants(root)}
    models = models_at(root, [part for part in path if part not in tags])
    return [tag_of(m) for m in models] if len(models) > 1 else []


def _variants(root: type[BaseModel]) -> list[type[BaseModel]]:
    """Every model below `root` that is one of several."""
    found: list[type[BaseModel]] = []
    for field in root.model_fields.values():
        models = _models_in(field.annotation)
        found += models if len(models) > 1 else []
        found += [v for m in models for v in _variants(m)]
    return found


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, Annotated):
        return [m for a in typing.get_args(annotation) for m in _models_in(a)]
    return []
