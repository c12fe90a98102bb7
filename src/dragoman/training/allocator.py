"""Keep freed memory in the process, which makes training on a CPU up to 1.5 times faster, or return it to the system.

glibc maps each large block separately and unmaps it when it is freed, so that every training step has page faults; but
it raises the size from which it does so with every block that is freed, up to 32 MB.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Configure glibc to keep freed memory; return False if the C library is another one."""
    return _configure(1 << 30, (1 << 31) - 1)


def return_freed_memory() -> bool:
    """Configure glibc to return freed blocks of 1 MiB or more; return False if the C library is another one."""
    return _configure(1 << 20, 1 << 20)


def _configure(mmap_threshold: int, trim_threshold: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, mmap_threshold) and mallopt(_TRIM_THRESHOLD, trim_threshold))
