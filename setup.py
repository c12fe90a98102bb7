"""The native engine: built where a C++ compiler for x86-64 is found; without one the plain path does its work.

All else about the package is in pyproject.toml.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("src/dragoman/decoding/native/csrc")
# No contraction: a sum must not depend on which of two equal expressions the compiler makes one instruction of.
COMMON = ["-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fvisibility-inlines-hidden", "-pthread"]
COMMON += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # of which GCC 12 accuses its own headers
BUILDS = {
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
}


CPU = Extension(
    "dragoman.decoding.native._cpu",
    sources=[(NATIVE / "cpu/features.cpp").as_posix()],
    # The last -march counts: flags of the environment must not let it use what the processor may not have.
    extra_compile_args=["-std=c++17", "-O2", "-march=x86-64"],
    language="c++",
    optional=True,
)
"""Says which builds this processor can run, before any of them is loaded."""


def extension(name: str, flags: list[str]) -> Extension:
    # Both builds compile the same files to the same places: one after the other, not in parallel.
    return Extension(
        f"dragoman.decoding.native._{name}",
        sources=[path.as_posix() for path in sorted(NATIVE.glob("*.cpp"))],
        depends=[path.as_posix() for path in sorted(NATIVE.glob("*.h"))],
        extra_compile_args=COMMON + flags,
        extra_link_args=["-pthread"],
        language="c++",
        optional=True,
    )


here = platform.machine().lower() in ("x86_64", "amd64") and sys.platform != "win32"
setup(ext_modules=[CPU, *(extension(*build) for build in BUILDS.items())] if here else [])
