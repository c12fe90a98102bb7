"""Paths of the document: relative to a root, with environment variables."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dragoman.errors import UsageError, clip


def resolve_path(text: str, root: str = "") -> Path:
    """Return a path of the document, relative to `root`, with `${NAME}`, `${NAME:-default}` and `~` expanded.

    Raises UsageError for unset variables, unknown users and NUL characters.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], match[2])
        if found is None:
            raise UsageError(
                f"{text!r}: the environment variable {match[1]} is not set; set it, or write the full path"
            )
        return found

    def expand(part: str) -> Path:
        filled = re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", value, part)
        if "\0" in filled:
            raise UsageError(f"{clip(filled)!r}: a path cannot contain a NUL character; write a file name")
        try:
            return Path(filled).expanduser()
        except RuntimeError:
            raise UsageError(
                f"{clip(filled)!r}: no home folder is known for {clip(filled.split('/')[0])!r}; write the full path, "
                "or ./~name for a folder with that name"
            ) from None

    path = expand(text)
    return path if path.is_absolute() or not root else expand(root) / path


def move_root(root: str, to: Path, start: Path = Path()) -> str:
    """Convert a root relative to the folder `start` to a root relative to the folder `to`.

    A root that begins with `/`, a variable or `~` is returned unchanged.
    """
    if Path(root).is_absolute() or root.startswith(("$", "~")):
        return root
    try:
        target = os.path.realpath(start / root)
        return Path(os.path.relpath(target, os.path.realpath(to))).as_posix()
    except (OSError, ValueError):  # a NUL character; another drive; the current directory was deleted
        return root
