"""Loading of the C++ kernels, and the processors on which they are used.

All builds give the same bits.  PyTorch multiplies float32 matrices with MKL, which reached less than half of the speed
of the kernel on an AMD EPYC (Zen 5, AVX-512) and about the same on another (Zen 3, AVX2), but 1.03 to 1.45 times its
speed on an Intel Xeon (Emerald Rapids).  Matrix products are therefore left to PyTorch except on AMD's processors.
Which implementation runs is a function of the processor alone, never of a measurement, so that a run can be resumed
with the same bits.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

_BUILDS = {"avx512": "avx512f avx512bw avx512vl avx512dq fma", "avx2": "avx2 fma f16c", "neon": "asimd"}
"""The instructions of each build, as /proc/cpuinfo calls them, the fastest build first."""


def kernels() -> Any:
    """Return the C interface of csrc/kernels.h, a `ctypes.CDLL`, or None if PyTorch's operations are to be used."""
    return _load()


def has_kernel_products() -> bool:
    """Return whether matrix products are computed by the kernels, too."""
    return kernels() is not None and prefers_products(_cpuinfo())


def preferred_build(cpuinfo: str) -> str | None:
    """Return the build for a processor, or None without one; cpuinfo: the content of /proc/cpuinfo."""
    fields = _fields(cpuinfo)
    flags = (fields.get("flags") or fields.get("Features", "")).split()
    return next((build for build, instructions in _BUILDS.items() if set(flags) >= set(instructions.split())), None)


@cache
def prefers_products(cpuinfo: str) -> bool:
    """Return whether the kernel of matrix products is faster than PyTorch's on a processor."""
    return preferred_build(cpuinfo) is not None and _fields(cpuinfo).get("vendor_id") == "AuthenticAMD"


def _fields(cpuinfo: str) -> dict[str, str]:
    lines = (line.partition(":") for line in cpuinfo.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _built() -> list[Path]:
    return sorted(Path(__file__).parent.glob(f"_{preferred_build(_cpuinfo())}.*"))


def lacks_kernels() -> bool:
    """Return whether the kernels would be used on this processor, if they had been built."""
    return preferred_build(_cpuinfo()) is not None and not _built()


@cache
def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


@cache
def _load() -> ctypes.CDLL | None:
    if not (built := _built()):
        return None
    try:
        library = ctypes.CDLL(str(built[0]))
        pointer, int32, int64, float32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
        signatures = {
            "multiply": [int32, pointer, pointer, pointer, pointer, pointer, int32, pointer],
            "smoothed_loss": [int32, int64, int64, pointer, pointer, ctypes.c_double, pointer],
            "drop": [int32, int64, pointer, int32, float32, pointer, pointer, pointer],
            "add_bias": [int32, int64, int64, pointer, pointer],
            "sum_rows": [int32, int64, int64, pointer, pointer],
            "add_bias_relu": [int32, int64, int64, pointer, pointer, pointer],
            "relu_backward": [int32, int64, int64, pointer, pointer, pointer],
            "add_and_norm": [int32, int64, int64, int32, float32, *[pointer] * 5, float32, *[pointer] * 3],
            "add_and_norm_backward": [int32, int64, int64, float32, *[pointer] * 9],
            "attend": [int32] + [pointer] * 8,
            "attend_backward": [int32] + [pointer] * 10,
        }
        for name, arguments in signatures.items():
            function = getattr(library, f"dragoman_{name}")
            function.restype, function.argtypes = None, arguments
    except (OSError, AttributeError):
        return None
    return library
