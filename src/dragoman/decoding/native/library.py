"""The native core, loaded where it was built and the processor has its instructions; else the reason why not.

A build with vector instructions may use them as soon as it is loaded (static initialisers), so the processor is asked
before: by `_cpu`, a library of one function that is compiled for every x86-64 processor.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

__all__ = ["VERSION", "Native", "Precision", "load_native", "missing"]

Precision = Literal["float32", "int8", "bfloat16"]
"""Of packed weights."""
VERSION = 2
"""Of packed files, as in native/model.h."""

_BUILDS = ("avx512", "avx2")
"""Fastest first."""


@dataclass(frozen=True)
class Native:
    """build: "avx512" or "avx2".  library: native/api.cpp."""

    build: str
    library: ctypes.CDLL


@cache
def _found() -> tuple[Native | None, str]:
    here = Path(__file__).parent
    built = [(name, path) for name in _BUILDS for path in sorted(here.glob(f"_{name}.*"))]
    if not built and platform.machine().lower() not in ("x86_64", "amd64"):
        return None, f"it is for x86-64 processors, and this is {platform.machine()}"
    if not built:
        return None, "it was not built when Dragoman was installed; install a C++ compiler (g++) and Dragoman again"
    problems = []
    for name, path in built:
        reason = _lacking(here, name, path)
        if reason:
            problems.append(reason)
            continue
        try:
            return Native(name, _declared(ctypes.CDLL(str(path)))), ""
        except (OSError, AttributeError) as error:
            problems.append(f"{path.name} cannot be loaded ({error}); install Dragoman again")
    return None, "; ".join(problems)


def _lacking(here: Path, name: str, path: Path) -> str:
    """Why this processor cannot run a build, found without loading it; "" where it can."""
    checks = sorted(here.glob("_cpu.*"))
    if not checks:
        return f"{path.name} has no _cpu library beside it to check the processor; install Dragoman again"
    try:
        runs = ctypes.CDLL(str(checks[0])).dragoman_runs(name.encode())
    except (OSError, AttributeError) as error:
        return f"{checks[0].name} cannot be loaded ({error}); install Dragoman again"
    return "" if runs else f"this processor lacks instructions of {path.name}"


def load_native() -> Native | None:
    """The fastest build that this processor can run, or None."""
    return _found()[0]


def missing() -> str:
    """Why `load_native` gives None; "" where it does not."""
    return _found()[1]


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, whole, long, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
    signatures = {
        "bfloat16": (whole, []),
        "open": (pointer, [text, text]),
        "close": (None, [pointer]),
        "sizes": (None, [pointer, pointer]),
        "content": (pointer, [pointer, pointer]),
        "search": (whole, [pointer] * 9 + [text]),
        "begin": (whole, [pointer, whole, whole, whole, whole, whole, pointer, text]),
        "end": (None, [long]),
        "encode": (whole, [long, pointer, pointer, pointer, whole, text]),
        "step": (whole, [long, pointer, whole, pointer, text]),
        "copy": (whole, [long, whole, whole, whole, text]),
        "bytes": (long, [long]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"dragoman_{name}")
        function.restype, function.argtypes = result, arguments
    return library
