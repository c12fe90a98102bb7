"""Messages for pydantic's validation errors: the key, the value, what is accepted, and the nearest name."""

from __future__ import annotations

import re
import reprlib
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel

from dragoman.config.limits import ADAM_RATES
from dragoman.errors import clip, nearest

__all__ = ["describe", "models_at", "shown", "tag_of"]

_EXPECTED = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text, in quotes",
    "model": "must be a section with keys of its own",
}
"""Beginning of pydantic's name for an error -> what is expected."""
_OUT_OF_RANGE = (
    "greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of", "finite_number",
)  # fmt: skip


def describe(error: dict[str, Any], root: type[BaseModel]) -> str:
    """Return the message for one of pydantic's errors on a document of the model `root`."""
    section, path, variants = _locate(error["loc"], root)
    kind, value, context = error["type"], error.get("input"), error.get("ctx") or {}
    name = ".".join(clip(part, 60) for part in path)
    tags = ", ".join(map(tag_of, variants))
    limits = _range(section, path)
    match kind:
        case "extra_forbidden":
            known = sorted(section.model_fields, key=lambda key: key not in ("kind", "architecture"))
            return f"{name}: no such key{nearest(path[-1], known)}; accepted here: {', '.join(known)}"
        case "too_short":
            return f"{name} = {shown(value)}: empty; at least one entry is required"
        case "missing":
            return f"{name}: missing; this key is required"
        case "union_tag_not_found":
            return f"{name}.kind: missing; accepted: {tags}"
        case "union_tag_invalid":
            tag, key = context["tag"], str(context["discriminator"]).strip("'")
            return f"{name}.{key}: no {key} {shown(tag)}{nearest(str(tag), map(tag_of, variants))}; accepted: {tags}"
        case "literal_error":
            expected = str(context["expected"])
            near = nearest(value, re.findall("'([^']*)'", expected)) if isinstance(value, str) else ""
            return f"{name} = {shown(value)}{near}; accepted: {expected}"
        case "model_type" | "model_attributes_type" if tags:
            return f"{name} = {shown(value)}: write {name}.kind = ..., one of {tags}"
        case "bool_for_number":
            return f"{name} = {shown(value)}: must be a number, not true or false{limits and f'; accepted: {limits}'}"
        case "string_pattern_mismatch":
            return f"{name} = {shown(value)}: no such device; accepted: auto, cpu, cuda, cuda:1, mps, xpu, hpu"
        case _ if type_expected := _EXPECTED.get(kind.partition("_")[0]):
            return f"{name} = {shown(value)}: {type_expected}{limits and f'; accepted: {limits}'}"
        case _ if kind in _OUT_OF_RANGE and limits:
            return f"{name} = {shown(value)}: out of range; accepted: {limits}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not name:  # the error concerns two sections, and its message names both
        return message
    given = "" if isinstance(value, dict) else f" = {shown(value)}"
    return f"{name}{given}: {message[0].lower() + message[1:]}"


def shown(value: Any) -> str:
    """Return a value as it is written in TOML, shortened to one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of about {int(value.bit_length() * 0.30103):,} digits"
    if isinstance(value, list | tuple | dict):
        return reprlib.repr(value)
    return clip(repr(value))


def _range(section: type[BaseModel], path: Sequence[str]) -> str:
    """Return the limits of a number, such as "1 to 65,536"; empty if the field has none."""
    field = section.model_fields.get(path[-1]) if path else None
    if field is None:
        return ""
    optional = [m for part in typing.get_args(field.annotation) for m in getattr(part, "__metadata__", ())]  # X | None
    metadata = [m for part in (*field.metadata, *optional) for m in getattr(part, "metadata", [part])]
    names = ("ge", "gt", "le", "multiple_of")
    bounds = {name: getattr(part, name) for part in metadata for name in names if hasattr(part, name)}
    if "le" not in bounds or not bounds.keys() & {"ge", "gt"}:
        return ""
    least = _number(bounds["ge"]) if "ge" in bounds else f"more than {_number(bounds['gt'])}"
    multiple = f", a multiple of {bounds['multiple_of']}" if "multiple_of" in bounds else ""
    rate = ADAM_RATES.get(path[-1]) if list(path[:-1]) == ["train", "schedule"] else None
    adam = f', at most {_number(rate)} unless train.optimizer.kind is "sgd"' if rate else ""
    return f"{least} to {_number(bounds['le'])}{multiple}{adam}"


def _number(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:,.0f}" if 1000 <= limit < 1e15 else f"{limit:g}"


def _locate(loc: Sequence[Any], root: type[BaseModel]) -> tuple[type[BaseModel], list[str], list[type[BaseModel]]]:
    """Return the section that contains the last key of a location, the keys, and the variants of the value, if any.

    pydantic appends the tag of the selected variant to a key; users do not write it.
    """
    section, path = root, []
    models: list[type[BaseModel]] = []
    for part in loc:
        if len(models) > 1 and (chosen := next((m for m in models if tag_of(m) == part), None)):
            section, models = chosen, []
            continue
        path.append(str(part))
        if isinstance(part, str):
            section = models[0] if models else section
            models = _models_in(section.model_fields[part].annotation) if part in section.model_fields else []
    return section, path, models if len(models) > 1 else []


def tag_of(model: type[BaseModel]) -> str:
    """Return the value of `architecture` or `kind` that selects a variant."""
    field = model.model_fields.get("architecture") or model.model_fields["kind"]
    return str(field.default)


def models_at(root: type[BaseModel], path: Sequence[str]) -> list[type[BaseModel]]:
    """Return the possible models of the section at `path`; empty if `path` is not a section."""
    models = [root]
    for part in path:
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        if fields:
            models = list(dict.fromkeys(m for field in fields for m in _models_in(field.annotation)))
        elif not (part.isascii() and part.isdigit()):
            return []
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, Annotated):
        return [m for a in typing.get_args(annotation) for m in _models_in(a)]
    return []
