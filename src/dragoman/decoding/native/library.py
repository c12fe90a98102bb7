"""Loading of the C++ library that fits this processor.

A build with vector instructions may execute them as soon as it is loaded (static initializers).  The processor is
therefore checked first by `_cpu`, a library of one function that is compiled for every processor of the architecture.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Precision = Literal["float32", "int8", "bfloat16"]
"""Data type of packed weights."""
VERSION = 3
"""Version of the packed file format, as in csrc/model.h."""
INTERFACE = 2
"""Version of the functions and structures, as in csrc/api.cpp: to be raised with every change of either."""

_BUILDS = ("avx512", "avx2", "i8mm", "dotprod", "neon")
"""Of x86-64 and of ARM64, fastest first."""


@dataclass(frozen=True)
class NativeLibrary:
    """build: one of _BUILDS.  functions: the C interface of csrc/api.cpp."""

    build: str
    functions: ctypes.CDLL

    @property
    def supports_bfloat16(self) -> bool:
        """Whether this build and this processor support bfloat16 products."""
        return bool(self.functions.dragoman_supports_bfloat16())

    @property
    def supports_amx(self) -> bool:
        """Whether products of int8 weights use the tile registers of AMX."""
        return bool(self.functions.dragoman_supports_amx())


def load_native() -> NativeLibrary | None:
    """Return the fastest build that this processor supports, or None."""
    return _load()[0]


def unavailable_reason() -> str:
    """Return why `load_native` returns None; "" if it returns a library."""
    return _load()[1]


@cache
def _load() -> tuple[NativeLibrary | None, str]:
    folder = Path(__file__).parent
    built = [(build, path) for build in _BUILDS for path in sorted(folder.glob(f"_{build}.*"))]
    if not built and platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        return None, f"it requires an x86-64 or ARM64 processor; this is {platform.machine()}"
    if not built:
        return None, "it was not built during installation; install a C++ compiler (g++) and reinstall Dragoman"
    problems = []
    for build, path in built:
        reason = _unsupported_reason(folder, build, path)
        if reason:
            problems.append(reason)
            continue
        try:
            library = ctypes.CDLL(str(path))
            if library.dragoman_interface() != INTERFACE:
                raise OSError(f"interface {library.dragoman_interface()}, not {INTERFACE}")
            return NativeLibrary(build, _declare_functions(library)), ""
        except (OSError, AttributeError) as error:
            problems.append(f"{path.name} cannot be loaded ({error}); reinstall Dragoman")
    return None, "; ".join(problems)


def _unsupported_reason(folder: Path, build: str, path: Path) -> str:
    """Return why this processor cannot run a build, without loading it; "" if it can."""
    checks = sorted(folder.glob("_cpu.*"))
    if not checks:
        return f"{path.name} has no _cpu library next to it to check the processor; reinstall Dragoman"
    try:
        supported = ctypes.CDLL(str(checks[0])).dragoman_cpu_supports(build.encode())
    except (OSError, AttributeError) as error:
        return f"{checks[0].name} cannot be loaded ({error}); reinstall Dragoman"
    return "" if supported else f"this processor lacks instructions of {path.name}"


def _declare_functions(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, int32, int64, string = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
    signatures = {
        "supports_bfloat16": (int32, []),
        "supports_amx": (int32, []),
        "model_open": (pointer, [string, string]),
        "model_close": (None, [pointer]),
        "model_sizes": (None, [pointer, pointer]),
        "model_content": (pointer, [pointer, pointer]),
        "shortlists": (int32, [pointer] * 4 + [int32, pointer, pointer, string]),
        "search": (int32, [pointer] * 9 + [string]),
        "service_open": (pointer, [pointer, pointer, string]),
        "service_close": (None, [pointer]),
        "service_submit": (int32, [pointer, pointer, pointer, ctypes.c_double, pointer, string]),
        "service_cancel": (None, [pointer, pointer, int32]),
        "service_load": (None, [pointer, pointer]),
        "service_notify": (None, [pointer, int32]),
        "service_wait": (None, [pointer, ctypes.c_double, pointer, string]),
        "service_collect": (None, [pointer] * 10),
        "session_open": (int32, [pointer, int32, int32, int32, int32, int32, pointer, string]),
        "session_close": (None, [int64]),
        "session_encode": (int32, [int64, pointer, pointer, pointer, int32, string]),
        "session_step": (int32, [int64, pointer, int32, pointer, string]),
        "session_copy": (int32, [int64, int32, int32, int32, string]),
        "session_bytes": (int64, [int64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"dragoman_{name}")
        function.restype, function.argtypes = result, arguments
    return library
