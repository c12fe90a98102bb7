"""Loading of the C++ kernels, and the processors on which they are used.

PyTorch multiplies float32 matrices with MKL, which reached less than half of the speed of these kernels on an AMD EPYC
(Zen 5).  They are therefore used on processors of other vendors than Intel with AVX-512.  Which implementation runs
is a function of the processor alone, never of a measurement, so that a run can be resumed with the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["kernels", "lacks_kernels", "prefers_kernels", "without_kernels"]

_INSTRUCTIONS = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"}

_disabled = False


def kernels() -> ctypes.CDLL | None:
    """Return the C interface of csrc/api.cpp, or None if PyTorch's operations are to be used."""
    return None if _disabled else _load()


@contextmanager
def without_kernels() -> Generator[None, None, None]:
    """Use PyTorch's operations for the duration of a block."""
    global _disabled
    before, _disabled = _disabled, True
    try:
        yield
    finally:
        _disabled = before


def prefers_kernels(cpuinfo: str) -> bool:
    """Return whether the kernels are faster than PyTorch on a processor; cpuinfo: the content of /proc/cpuinfo."""
    lines = (line.partition(":") for line in cpuinfo.split("\n\n")[0].splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    instructions = set(fields.get("flags", "").split())
    return fields.get("vendor_id", "GenuineIntel") != "GenuineIntel" and instructions >= _INSTRUCTIONS


def lacks_kernels() -> bool:
    """Return whether the kernels would be used on this processor, if they had been built."""
    return not _built() and _is_suitable()


def _built() -> list[Path]:
    return sorted(Path(__file__).parent.glob("_avx512.*"))


def _is_suitable() -> bool:
    try:
        return prefers_kernels(Path("/proc/cpuinfo").read_text())
    except OSError:
        return False


@cache
def _load() -> ctypes.CDLL | None:
    built = _built()
    # The library may execute AVX-512 instructions as soon as it is loaded.
    if not built or not _is_suitable():
        return None
    try:
        library = ctypes.CDLL(str(built[0]))
        pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        signatures = {
            "multiply": [int32, pointer, pointer, pointer, pointer, pointer, int32, pointer],
            "smoothed_loss": [int32, int64, int64, pointer, pointer, ctypes.c_double, pointer],
            "drop": [int32, int64, pointer, int32, ctypes.c_float, pointer, pointer, pointer],
            "attend": [int32] + [pointer] * 8,
            "attend_backward": [int32] + [pointer] * 10,
        }
        for name, arguments in signatures.items():
            function = getattr(library, f"dragoman_{name}")
            function.restype, function.argtypes = None, arguments
    except (OSError, AttributeError):
        return None
    return library
