"""A page in one file: template, style, scripts and data together, so that it needs no network and asks for none."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from numbers import Real
from pathlib import Path
from typing import Any

from dragoman.errors import DragomanError
from dragoman.io.writing import atomic_file, not_written

__all__ = ["embedded_json", "fill", "web", "whole_page", "write_page"]


def web(*names: str) -> str:
    """The text of files in `web/`, one after the other."""
    return "\n".join((files("dragoman") / "pages" / name).read_text("utf-8") for name in names)


def fill(template: str, parts: Mapping[str, str]) -> str:
    """The template with each `%%name%%` replaced by `parts[name]`."""
    # One pass over the template: what is put in is never searched for a mark again.
    pieces = template.split("%%")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def whole_page(title: str, body: str, name: str, data: Any, styles: Sequence[str], scripts: Sequence[str]) -> str:
    """A page from its parts: the one place for the head, and for the policy that lets it load nothing.

    title: plain text.  body: HTML.  data: what the scripts draw, in the element called `name`.  styles, scripts: files
    in `web/`; one of the scripts defines `start`.
    """
    parts = {"title": html.escape(title), "body": body, "name": name, "data": embedded_json(data)}
    return fill(web("shell.html"), parts | {"style": web(*styles), "script": web(*scripts)})


def embedded_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever the texts hold."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _plain(value: Any) -> Any:
    """`value` in what JSON has: numbers that are not finite become null, unknown kinds their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Real):
        # Six digits are more than a picture can show, and keep the page small.
        return float(f"{float(value):.6g}") if math.isfinite(value) else None
    return str(value)


def write_page(path: Path, page: str) -> Path:
    """Write the page to `path`, whole or not at all, and return `path`.

    Raises DragomanError where the file cannot be written; what was there before stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(page.encode("utf-8"))
    except OSError as error:
        raise DragomanError(not_written(path, error)) from error
    return path
