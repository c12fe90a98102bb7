"""Descriptions of all keys and kinds of the configuration, read from the models, and documents with all defaults."""

from __future__ import annotations

import re
import shlex
import types
import typing
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dragoman.config.document import Config
from dragoman.config.errors import DEVICES, limits_of, models_in, native_name, tag_key, tag_of, toml_value
from dragoman.config.model import PRESETS, TransformerConfig
from dragoman.config.section import Duration, Section, Share
from dragoman.config.stages import Stages
from dragoman.config.tune import Tuning
from dragoman.errors import UsageError, clip, nearest

Conditions = tuple[tuple[str, tuple[str, ...]], ...]
"""Kinds that a key requires, such as (("model.norm.kind", ("batch",)),)."""
_Chosen = tuple[tuple[str, str], ...]
"""The selected kinds on the path to a section: (key, kind)."""
_UNLIMITED = 2**63 - 1
_COLUMN = 44
"""Column of the comments in a document with all defaults."""
_DURATION = 'number and unit: "20 min", "2 h", "8000 steps", "30 epochs", "50M tokens"'
_SHARE = 'share of the budget: "5%"'


@dataclass(frozen=True)
class Key:
    """A key with one type, default and meaning, and the kinds that have it.  Values are TOML."""

    name: str
    conditions: Conditions
    value: str
    default: str
    meaning: str
    example: str

    @property
    def override(self) -> str:
        """The example as an argument of `dragoman train`, quoted for the shell."""
        value = self.example.strip('"')
        return shlex.quote(f"{self.name}={value}")

    def is_of(self, kind: Kind) -> bool:
        return self.name in kind.keys and all(kind.tag in tags for name, tags in self.conditions if name == kind.name)


@dataclass(frozen=True)
class Kind:
    """A kind of a section, or an architecture, with the names of its keys."""

    name: str
    tag: str
    conditions: Conditions
    meaning: str
    keys: tuple[str, ...]


def section_of(name: str) -> str:
    """Return the section of a key: "model.norm" for "model.norm.eps"."""
    return name.rpartition(".")[0]


# ---------------------------------------------------------------------------------------------------- reading models


@cache
def all_keys() -> tuple[Key, ...]:
    """Return all keys, section by section in the order of the document.  Entries of lists have the index 0."""
    by_name: dict[tuple[str, ...], list[_Chosen]] = {}
    for name, chosen, field, models in chain(_fields(Config, "", ()), _fields(Stages, "", ()), _fields(Tuning, "", ())):
        if any(name == selecting for selecting, _ in chosen):
            continue  # described with the section that it selects
        meaning, example = field.description or "", toml_value(field.examples[0]) if field.examples else ""
        if len(models) > 1:
            tags = [tag_of(model) for model in models]
            default = tags[0] if field.is_required() else tag_of(type(field.default))
            name, value, default = f"{name}.{tag_key(models[0])}", ", ".join(map(toml_value, tags)), toml_value(default)
        elif "." in name:
            value, default = _value(field), _default(field)
        else:
            continue  # sections of the document have no value of their own
        by_name.setdefault((name, value, default, meaning, example), []).append(chosen)
    keys = [Key(name, _conditions(chosen), *rest) for (name, *rest), chosen in by_name.items()]
    # `parse_config` expands the preset, which the models do not contain.
    accepted, meaning = ", ".join(map(toml_value, PRESETS)), "sizes of a published model; other keys override them"
    tag = TransformerConfig.model_fields["architecture"].default
    keys.append(Key("model.preset", (("model.architecture", (tag,)),), accepted, "none", meaning, '"big"'))
    sections = list(dict.fromkeys(section_of(key.name) for key in keys))
    return tuple(sorted(keys, key=lambda key: sections.index(section_of(key.name))))


@cache
def all_kinds() -> tuple[Kind, ...]:
    """Return all kinds of all sections, in the order of the document."""
    by_kind: dict[tuple[str, str, str, tuple[str, ...]], list[_Chosen]] = {}
    for section, chosen, models in _unions():
        for model in models:
            meaning = " ".join((model.__dict__.get("__doc__") or "").split("\n\n")[0].split())
            names = tuple(f"{section}.{name}" for name in model.model_fields if name != tag_key(model))
            by_kind.setdefault((f"{section}.{tag_key(model)}", tag_of(model), meaning, names), []).append(chosen)
    return tuple(
        Kind(key, tag, _conditions(chosen), meaning, names) for (key, tag, meaning, names), chosen in by_kind.items()
    )


def _fields(
    model: type[BaseModel], prefix: str, chosen: _Chosen
) -> Iterator[tuple[str, _Chosen, FieldInfo, list[type[BaseModel]]]]:
    """Yield the name of every field in a section and its sections, the kinds that lead to it, and its own kinds."""
    for name, field in model.model_fields.items():
        key, models = f"{prefix}{name}", models_in(field.annotation)
        yield key, chosen, field, models
        if len(models) > 1:
            for m in models:
                yield from _fields(m, f"{key}.", (*chosen, (f"{key}.{tag_key(m)}", tag_of(m))))
        elif models:
            yield from _fields(models[0], f"{key}.0." if _is_list(field) else f"{key}.", chosen)


def _unions() -> Iterator[tuple[str, _Chosen, list[type[BaseModel]]]]:
    """Yield the sections that have kinds, the kinds that lead to them, and the models of their kinds."""
    return ((name, chosen, models) for name, chosen, _, models in _fields(Config, "", ()) if len(models) > 1)


def _conditions(chosen: Iterable[_Chosen]) -> Conditions:
    """Merge the selected kinds of several paths; omit sections whose kinds are all included."""
    merged: dict[str, list[str]] = {}
    for key, tag in dict.fromkeys(pair for path in chosen for pair in path):
        merged.setdefault(key, []).append(tag)
    return tuple((key, tuple(tags)) for key, tags in merged.items() if len(tags) < len(_tags()[key]))


@cache
def _tags() -> dict[str, set[str]]:
    """Return the set of kinds per key that selects them."""
    tags: dict[str, set[str]] = {}
    for section, _, models in _unions():
        tags.setdefault(f"{section}.{tag_key(models[0])}", set()).update(map(tag_of, models))
    return tags


# ------------------------------------------------------------------------------------------------------ descriptions


def _is_list(field: FieldInfo) -> bool:
    return typing.get_origin(field.annotation) is tuple


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(field.default, Duration):
        return toml_value(str(field.default))
    return "" if isinstance(field.default, BaseModel) else toml_value(field.default)


def _value(field: FieldInfo) -> str:
    """Return the accepted values of a field."""
    types_ = _plain(field.annotation)
    if any(getattr(part, "pattern", None) for part in field.metadata):
        return f"text: {DEVICES}"
    names = {
        bool: "`true`, `false`", str: "text", int: "whole number", float: "number", Duration: _DURATION, Share: _SHARE,
    }  # fmt: skip
    words = [names.get(one, "section") if isinstance(one, type) else toml_value(one) for one in types_]
    if limits := limits_of(field):
        words[0] += ", " + limits.replace(f" to {_UNLIMITED:,}", " or more")
    if _is_list(field):
        noun, comma, limits = words[0].partition(",")
        plural = noun in ("section", "text", "whole number", "number")
        return f"list of {f'{noun}s{comma}{limits}' if plural else ', '.join(words)}"
    return (" or " if any(isinstance(one, type) for one in types_) else ", ").join(words)


def _plain(annotation: Any) -> list[Any]:
    """Return the types and literals of an annotation, without None."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _plain(typing.get_args(annotation)[0])
    if origin is Literal:
        return list(typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType, tuple):
        return [one for part in typing.get_args(annotation) for one in _plain(part)]
    if origin is dict:
        return [dict]
    return [] if annotation in (type(None), ...) else [annotation]


# ----------------------------------------------------------------------------------------------------------- look-up


def look_up(name: str) -> tuple[list[Kind], list[Key]]:
    """Return the kinds and keys for the name of a key, a section or a kind; leading parts may be omitted.

    Raises UsageError with the nearest name.
    """
    wanted = _without_index(name.strip().strip("[]").strip())
    kinds = [kind for kind in all_kinds() if kind.tag == wanted]
    for matches in (str.__eq__, _is_in, lambda name, end: any(x.endswith(f".{end}") for x in (name, section_of(name)))):
        keys = [key for key in all_keys() if matches(_without_index(key.name), wanted)]
        if keys and not (kinds and all(key.name.startswith("stage.") for key in keys)):
            # A section is described without the kinds of its inner sections.
            selecting = {key.name for key in keys if matches is not _is_in or section_of(key.name) == wanted}
            return [kind for kind in all_kinds() if kind.name in selecting], keys
    if kinds:
        return kinds, [key for key in all_keys() if any(key.is_of(kind) for kind in kinds)]
    names = {_without_index(key.name) for key in all_keys()}
    other, last = native_name(wanted.rpartition(".")[2]), wanted.rpartition(".")[2]
    near = f" (did you mean {other!r}?)" if other else nearest(wanted, names)
    near = near or nearest(last, {name.rpartition(".")[2] for name in names} | {kind.tag for kind in all_kinds()})
    raise UsageError(
        f"{clip(wanted)!r}: no such key, section or kind{near}; accepted: a name such as train.seed, model.norm or "
        "rotary, or a CONFIG.toml; 'dragoman config' lists all sections"
    )


def _without_index(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)|\[\]", "", name)


def _is_in(name: str, wanted: str) -> bool:
    """Return whether a key is in a section, or selects the kind of one of its sections."""
    section = section_of(name)
    return section == wanted or (section_of(section) == wanted and name.endswith(".kind") and name in _tags())


# ------------------------------------------------------------------------------------------ documents with all defaults


def annotated_toml(document: Section, names_set: Collection[str], preset: str | None = None) -> str:
    """Return the document with all defaults as TOML; a comment states the origin of each value.

    names_set: dotted keys that were set.  preset: name of the preset, the origin of values of `[model]` that are not
    set and differ from the defaults.
    """
    lines = []
    for name, section in document:
        usual = type(document).model_fields[name].default
        lines += [f"[{name}]", *_lines(section, usual, f"{name}.", "", names_set, preset), ""]
    return "\n".join(lines)


def _lines(
    section: Section, usual: Any, prefix: str, inner: str, names_set: Collection[str], preset: str | None
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
            yield from _lines(value, default, f"{key}.", f"{inner}{name}.", names_set, preset)
            continue
        if name not in written:
            continue
        if value is None:
            yield f"# {inner}{name}: not set"
            continue
        if name in ("kind", "architecture"):
            default = getattr(usual, name, None)
        is_set = any(one == key or one.startswith(f"{key}.") for one in names_set)
        origin = _origin(value, default, is_set, preset)
        yield f"{f'{inner}{name} = {toml_value(written[name])}':<{_COLUMN}}  # {origin}"


def _origin(value: Any, default: Any, is_set: bool, preset: str | None) -> str:
    if value == default or (default is None and not is_set):
        return "default"
    if not is_set:
        return f'preset "{preset}"'
    standard = toml_value(str(default) if hasattr(default, "unit") else default)
    return "set" if default is None else f"set; default: {standard}"
