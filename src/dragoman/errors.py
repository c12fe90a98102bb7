"""Every error that Dragoman raises on purpose.

DragomanError
├── UsageError          a call or command line that cannot be carried out (exit code 2)
│   └── ConfigError     the configuration document: every problem in it, at once (exit code 2)
├── DataError           text that cannot be used: misaligned, undecodable, empty
├── ModelFolderError    a folder on disk that is not, or no longer, a whole model
└── TrainingError       training that cannot go on: the loss is not finite, the disk is full

A message says what is wrong (with the value), where (file, line, key, tensor), what would be accepted and what to do
next.  The command line prints it without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "ConfigError",
    "DataError",
    "DragomanError",
    "ModelFolderError",
    "TrainingError",
    "UsageError",
    "nearest",
]


_SHOWN = 10
"""Problems of a configuration that a message shows."""
_LONGEST_NAME = 200


class DragomanError(Exception):
    """The root of the tree: catch this to catch all that Dragoman reports on purpose."""

    exit_code = 1


class UsageError(DragomanError):
    """A call or a command line that cannot be carried out as it stands."""

    exit_code = 2


class ConfigError(UsageError):
    """One or more problems in a configuration document: the message shows the first ten, `problems` holds all."""

    def __init__(self, where: str, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        count = len(self.problems)
        lines = [
            f"{where}: {count:,} problem{'s' if count != 1 else ''}",
            *(f"  - {p}" for p in self.problems[:_SHOWN]),
        ]
        if count > _SHOWN:
            lines.append(f"  - and {count - _SHOWN:,} more; correct these first")
        super().__init__("\n".join(lines))


class DataError(DragomanError):
    """Text that cannot be used."""


class ModelFolderError(DragomanError):
    """A folder that is not, or is no longer, a whole model."""


class TrainingError(DragomanError):
    """Training that cannot go on; what was saved before stays safe."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the choice closest to `word`, or the empty string."""
    if len(word) > _LONGEST_NAME:  # nothing is close to it, and the comparison would take long
        return ""
    match = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" (did you mean {match[0]!r}?)" if match else ""


def clip(text: str, limit: int = 80) -> str:
    """`text` in at most `limit` characters, for a message."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
