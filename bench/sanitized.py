"""Build the native engine with compiler sanitizers, for bench/fuzz_native.py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "dragoman" / "decoding" / "native" / "csrc"
INSTRUCTIONS = {
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
}
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
# Replaces mmap by heap memory, so that the address sanitizer detects accesses outside of a buffer.  Released pages are
# filled with NaN.
MMAP_REPLACEMENT = """
#include <sys/mman.h>
#include <cstdlib>
#include <cstring>
inline void* heap_mmap(size_t bytes) {
  void* found = nullptr;
  if (posix_memalign(&found, 64, bytes) != 0 || found == nullptr) return MAP_FAILED;
  return std::memset(found, 0, bytes);
}
#define mmap(address, bytes, protection, flags, file, offset) heap_mmap(bytes)
#define munmap(address, bytes) std::free(address)
#define madvise(address, bytes, advice) ((advice) == MADV_FREE ? (std::memset(address, 0xFF, bytes), 0) : 0)
#define DRAGOMAN_RELEASE_THRESHOLD 0
"""


def compiled(folder: Path, build: str, sanitizer: str) -> Path:
    """Return the path of the instrumented library."""
    (folder / "mmap_replacement.h").write_text(MMAP_REPLACEMENT)
    library = folder / f"_{build}.so"
    flags = ["-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"]
    checks = [f"-fsanitize={SANITIZERS[sanitizer]}", "-fno-sanitize-recover=all"]
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    include = ["-include", str(folder / "mmap_replacement.h")]
    subprocess.run(["g++", *flags, *checks, *INSTRUCTIONS[build], *include, *sources, "-o", library], check=True)
    return library


def environment(sanitizer: str) -> dict[str, str]:
    """Return the environment in which Python loads the instrumented library."""
    runtimes = {"address": "libasan.so", "thread": "libtsan.so"}[sanitizer], "libstdc++.so.6"
    paths = [subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in runtimes]
    return os.environ | {
        "LD_PRELOAD": " ".join(os.path.realpath(path) for path in paths),
        "PYTHONMALLOC": "malloc",  # the sanitizer checks Python's objects too
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1",
        "OMP_NUM_THREADS": "1",
    }
