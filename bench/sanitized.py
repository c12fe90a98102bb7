"""The native core with the sanitizers of the compiler, as bench/fuzz_native.py plays with it, and how to run it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

NATIVE = Path(__file__).parents[1] / "src" / "dragoman" / "fast" / "native"
INSTRUCTIONS = {
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
}
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
# The memory that the core maps, as heap memory with a fence on both sides: what is read or written beside it is seen.
# What it lends to the system between two searches comes back as NaN.
FENCES = """
#include <sys/mman.h>
#include <cstdlib>
#include <cstring>
inline void* fenced_map(size_t bytes) {
  void* found = nullptr;
  if (posix_memalign(&found, 64, bytes) != 0 || found == nullptr) return MAP_FAILED;
  return std::memset(found, 0, bytes);
}
#define mmap(address, bytes, protection, flags, file, offset) fenced_map(bytes)
#define munmap(address, bytes) std::free(address)
#define madvise(address, bytes, advice) ((advice) == MADV_FREE ? (std::memset(address, 0xFF, bytes), 0) : 0)
#define DRAGOMAN_LENT 0
"""


def compiled(folder: Path, build: str, sanitizer: str) -> Path:
    """The core with its sanitizer inside."""
    (folder / "fences.h").write_text(FENCES)
    library = folder / f"_{build}.so"
    flags = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"]
    checks = [f"-fsanitize={SANITIZERS[sanitizer]}", "-fno-sanitize-recover=all"]
    sources = [str(path) for path in sorted(NATIVE.glob("*.cpp"))]
    fences = ["-include", str(folder / "fences.h")]
    subprocess.run(["g++", *flags, *checks, *INSTRUCTIONS[build], *fences, *sources, "-o", library], check=True)
    return library


def environment(sanitizer: str) -> dict[str, str]:
    runtimes = {"address": "libasan.so", "thread": "libtsan.so"}[sanitizer], "libstdc++.so.6"
    where = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in runtimes]
    return os.environ | {
        "LD_PRELOAD": " ".join(os.path.realpath(path) for path in where),
        "PYTHONMALLOC": "malloc",  # so that Python's own objects have fences too
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1",
        "OMP_NUM_THREADS": "1",
    }
