"""`train.init_from`: [model], [tokenizer] and [search] of the model that a training starts from.

The sections are copied into the document before it is validated, so that the configuration which is stored with the
run is complete: to resume the run, the model is not needed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dragoman.config.data import move_root
from dragoman.config.errors import shown

_FREE = {
    "model": ("dropout", "attention_dropout", "activation_dropout"),
    "tokenizer": ("sampling", "target.sampling", "add_words"),
}
"""Keys that may differ from those of the model; all keys of [search] may."""


def initial_model(document: Mapping[str, Any], overrides: Iterable[str], start: Path = Path()) -> str | None:
    """Return train.init_from of a document with overrides; None if it is not set.

    start: the folder at which a relative path in the document starts; that of an override starts at the current one.
    """
    train = document.get("train")
    initial = train.get("init_from") if isinstance(train, dict) else None
    initial = move_root(initial, Path(), start=start) if isinstance(initial, str) and initial else None
    for key, _, value in (text.partition("=") for text in overrides if isinstance(text, str)):
        if key.strip() == "train.init_from":
            initial = value.strip().strip("\"'")
    return initial or None


def start_at(folder: Path, document: Mapping[str, Any]) -> None:
    """Resolve a relative train.init_from against the folder of the document instead of the current directory."""
    train = document.get("train")
    if isinstance(train, dict) and isinstance(given := train.get("init_from"), str) and given:
        train["init_from"] = move_root(given, Path(), start=folder)


def merge_sections(document: dict[str, Any], initial: Mapping[str, Any], owner: str) -> list[str]:
    """Complete a document by the sections of the configuration `initial`; return the conflicts between both.

    owner: the folder of `initial`, for messages.
    """
    problems = []
    kind, expected = (found.get("data", {}).get("kind") for found in (document, initial))
    if kind != expected:
        problems.append(
            f"data.kind = {shown(kind)}: {owner} was trained on data of kind {expected!r}, the only one accepted"
        )
    for name in ("model", "tokenizer", "search"):
        changes = document.get(name, {})
        if not isinstance(changes, dict):
            continue  # reported by the validation
        merged = copy.deepcopy(dict(initial.get(name, {})))
        merged.pop("add_words", None)  # they are part of the tokenizer now
        if name == "search":
            merged |= changes
        else:
            problems += _overlay(merged, changes, name, _FREE[name], owner)
        if kind == expected:
            document[name] = merged
    return problems


def _overlay(
    section: dict[str, Any], given: Mapping[str, Any], name: str, free: tuple[str, ...], owner: str, prefix: str = ""
) -> Iterator[str]:
    """Set the free keys and the unknown ones, which the validation reports; yield the conflicts of the others."""
    for key, value in given.items():
        path = f"{prefix}{key}"
        stored = section.get(key)
        if key not in section or path in free:
            section[key] = value
        elif isinstance(value, dict) and isinstance(stored, dict):
            yield from _overlay(stored, value, name, free, owner, f"{path}.")
        elif value != stored or isinstance(value, bool) != isinstance(stored, bool):
            has = "no value" if stored is None else shown(stored)
            advice = "remove the key, or start a new model without train.init_from"
            yield f"{name}.{path} = {shown(value)}: {owner} has {has}, and its {name} is kept; {advice}"
