"""Build of the C++ parts, if a compiler for x86-64 is available; without it, PyTorch is used in their place.

Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

SOURCES = Path("src/dragoman/decoding/native/csrc")
KERNELS = Path("src/dragoman/nn/fast/native/csrc")
# -ffp-contract=off: results must not depend on which multiplications and additions the compiler fuses.
COMMON = ["-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fvisibility-inlines-hidden", "-pthread"]
COMMON += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # false positives in the headers of GCC 12
BUILDS = {
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
}

CPU = Extension(
    "dragoman.decoding.native._cpu",
    sources=[(SOURCES / "cpu/features.cpp").as_posix()],
    # The last -march applies: flags from the environment must not add instructions that a processor may lack.
    extra_compile_args=["-std=c++17", "-O2", "-march=x86-64"],
    language="c++",
    optional=True,
)
"""Checks which builds this processor supports before one of them is loaded."""

TRAINING = Extension(
    "dragoman.nn.fast.native._avx512",
    sources=[path.as_posix() for path in sorted(KERNELS.glob("*.cpp"))],
    depends=[path.as_posix() for path in sorted(KERNELS.glob("*.h"))],
    # OpenMP: PyTorch has loaded its library already, so that both share their threads.
    extra_compile_args=[*COMMON, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-fopenmp"],
    extra_link_args=["-fopenmp"],
    language="c++",
    optional=True,
)
"""Kernels of training steps; nn/fast/native/library.py decides on which processors they are used."""


class Wheel(bdist_wheel):
    """One wheel for all versions of Python: the libraries are loaded with ctypes and use nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def extension(name: str, flags: list[str]) -> Extension:
    # All builds write their object files to the same paths: they must not be built in parallel.
    return Extension(
        f"dragoman.decoding.native._{name}",
        sources=[path.as_posix() for path in sorted(SOURCES.glob("*.cpp"))],
        depends=[path.as_posix() for path in sorted(SOURCES.glob("*.h"))],
        extra_compile_args=COMMON + flags,
        extra_link_args=["-pthread"],
        language="c++",
        optional=True,
    )


supported = platform.machine().lower() in ("x86_64", "amd64") and sys.platform != "win32"
setup(
    ext_modules=[CPU, TRAINING, *(extension(*build) for build in BUILDS.items())] if supported else [],
    cmdclass={"bdist_wheel": Wheel},
)
