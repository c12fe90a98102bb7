"""Pickles that create a folder where pickles are executed."""

from __future__ import annotations

import builtins
import functools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Attack:
    """refused: regular expression of the name that the unpickler refuses."""

    def __init__(self, payload: Any, refused: str) -> None:
        self.payload, self.refused = payload, refused

    def pickle(self, protocol: int) -> bytes:
        return pickle.dumps({"model": self.payload}, protocol=protocol)

    def succeed(self, content: bytes) -> None:
        pickle.loads(content)


class _Call:
    """Unpickled, it calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


ATTACKS: dict[str, Callable[[Path], Attack]] = {
    "mkdir": lambda path: Attack(_Call(os.mkdir, str(path)), r"posix\.mkdir"),
    "system": lambda path: Attack(_Call(os.system, f"mkdir {path}"), r"posix\.system"),
    "eval": lambda path: Attack(_Call(builtins.eval, f"__import__('os').mkdir({str(path)!r})"), r"builtins\.eval"),
    "exec": lambda path: Attack(_Call(builtins.exec, f"import os; os.mkdir({str(path)!r})"), r"builtins\.exec"),
    "getattr": lambda path: Attack(_Call(builtins.getattr, _Call(os.mkdir, str(path)), "x", 1), r"builtins\.getattr"),
    "partial": lambda path: Attack(_Call(functools.partial(os.mkdir, str(path))), r"functools\.partial"),
}  # fmt: skip
"""By name, an attack that creates a path."""
