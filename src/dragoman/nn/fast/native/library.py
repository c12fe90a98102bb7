"""Loading of the C++ kernels, and the processors on which they are used.

They are used on processors with AVX-512.  PyTorch multiplies float32 matrices with MKL, which reached less than half of
the speed of the kernel on an AMD EPYC (Zen 5), but 1.03 to 1.45 times its speed on an Intel Xeon (Emerald Rapids).  On
Intel's processors, matrix products are therefore left to PyTorch.  Which implementation runs is a function of the
processor alone, never of a measurement, so that a run can be resumed with the same bits.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

_INSTRUCTIONS = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"}


def kernels() -> Any:
    """Return the C interface of csrc/api.cpp, a `ctypes.CDLL`, or None if PyTorch's operations are to be used."""
    return _load()


def has_kernel_products() -> bool:
    """Return whether matrix products are computed by the kernels, too."""
    return kernels() is not None and prefers_products(_cpuinfo())


def prefers_kernels(cpuinfo: str) -> bool:
    """Return whether the kernels are faster than PyTorch on a processor; cpuinfo: the content of /proc/cpuinfo."""
    return set(_fields(cpuinfo).get("flags", "").split()) >= _INSTRUCTIONS


@cache
def prefers_products(cpuinfo: str) -> bool:
    """Return whether the kernel of matrix products is faster than PyTorch's on a processor."""
    return prefers_kernels(cpuinfo) and _fields(cpuinfo).get("vendor_id", "GenuineIntel") != "GenuineIntel"


def _fields(cpuinfo: str) -> dict[str, str]:
    lines = (line.partition(":") for line in cpuinfo.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def lacks_kernels() -> bool:
    """Return whether the kernels would be used on this processor, if they had been built."""
    return not _built() and prefers_kernels(_cpuinfo())


def _built() -> list[Path]:
    return sorted(Path(__file__).parent.glob("_avx512.*"))


@cache
def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


@cache
def _load() -> ctypes.CDLL | None:
    built = _built()
    # The library may execute AVX-512 instructions as soon as it is loaded.
    if not built or not prefers_kernels(_cpuinfo()):
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
