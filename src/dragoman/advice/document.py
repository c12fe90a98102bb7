"""Configuration documents with a comment above each setting that gives its reason."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import tomli_w

from dragoman.advice.choice import Setting

_WIDTH = 100
_TABLES = ("data", "data.valid", "data.test", "tokenizer", "tokenizer.target", "model", "train", "train.optimizer",
           "train.schedule", "search")  # fmt: skip


def nested(settings: Iterable[Setting]) -> dict[str, Any]:
    """Return settings with dotted keys as nested tables."""
    document: dict[str, Any] = {}
    for setting in settings:
        *tables, key = setting.key.split(".")
        table = document
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = setting.value
    return document


def render(title: Sequence[str], settings: Sequence[Setting]) -> str:
    """Return a TOML document with a comment above each setting.  title: paragraphs of the comment at its top."""
    parts = ["\n#\n".join(_comment(paragraph) for paragraph in title)]
    for table in _TABLES:
        inside = [setting for setting in settings if _table(setting.key) == table]
        if inside:
            lines = [f"[{table}]"]
            for setting in inside:
                if setting.reason:
                    lines.append(_comment(setting.reason))
                lines.append(_assignment(setting.key.removeprefix(f"{table}."), setting.value))
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _table(key: str) -> str:
    """Return the innermost table that contains a key."""
    return max((table for table in _TABLES if key.startswith(f"{table}.")), key=len)


def _comment(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _assignment(key: str, value: Any) -> str:
    _, _, text = tomli_w.dumps({"key": value}).partition(" = ")
    return f"{key} = {text.strip()}"
