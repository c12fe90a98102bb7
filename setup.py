"""Build of the C++ parts, if a compiler is available; without it, PyTorch is used in their place.

Everything else about the package is in pyproject.toml.  For another system or architecture than this one, name both it
and the compiler, whose standard library a wheel then needs there (docs/deployment.md):

    DRAGOMAN_PLATFORM=linux-aarch64 DRAGOMAN_CXX=aarch64-linux-gnu-g++ pip wheel --no-deps .
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

PLATFORM = os.environ.get("DRAGOMAN_PLATFORM", "")
SYSTEM = (PLATFORM or sysconfig.get_platform()).partition("-")[0]  # linux, macosx or win
MACHINE = (PLATFORM.rpartition("-")[2] or platform.machine()).lower()
MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(MACHINE, MACHINE)

SOURCES = Path("src/dragoman/decoding/native/csrc")
KERNELS = Path("src/dragoman/nn/fast/native/csrc")
# -ffp-contract=off: results must not depend on which multiplications and additions the compiler fuses.
COMMON = ["-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fvisibility-inlines-hidden", "-pthread"]
COMMON += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # false positives in the headers of GCC 12
BUILDS = {
    "x86_64": {
        "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"],
        "avx2": ["-mavx2", "-mfma", "-mf16c"],
    },
    "aarch64": {
        "i8mm": ["-march=armv8.2-a+dotprod+i8mm"],
        "dotprod": ["-march=armv8.2-a+dotprod"],
        "neon": ["-march=armv8-a"],
    },
}
BASE = {"x86_64": ["-march=x86-64"], "aarch64": ["-march=armv8-a"]}.get(MACHINE, []) if SYSTEM == "linux" else []

CPU = Extension(
    "dragoman.decoding.native._cpu",
    sources=[(SOURCES / "cpu/features.cpp").as_posix()],
    # The last -march applies: flags from the environment must not add instructions that a processor may lack.
    extra_compile_args=["-std=c++17", "-O2", *BASE],
    language="c++",
    optional=True,
)
"""Checks which builds this processor supports before one of them is loaded."""


class Wheel(bdist_wheel):
    """One wheel for all versions of Python: the libraries are loaded with ctypes and use nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", PLATFORM.replace("-", "_").replace(".", "_") or super().get_tag()[2]


class Build(build_ext):
    """With DRAGOMAN_CXX, and outside Linux, one command builds a library; otherwise setuptools does."""

    def compiler_command(self) -> list[str]:
        if given := os.environ.get("DRAGOMAN_CXX"):
            return shlex.split(given)
        if SYSTEM == "macosx":  # Python itself may be built for two architectures
            return ["c++", "-arch", MACHINE.replace("aarch64", "arm64")]
        return [sys.executable, "-m", "ziglang", "c++", "-target", f"{MACHINE}-windows-gnu"] if SYSTEM == "win" else []

    def get_ext_filename(self, name: str) -> str:
        suffix = {"macosx": ".dylib", "win": ".dll"}.get(SYSTEM, ".so")
        return str(Path(*name.split("."))) + suffix if self.compiler_command() else super().get_ext_filename(name)

    def build_extension(self, ext: Extension) -> None:
        if not (command := self.compiler_command()):
            super().build_extension(ext)
            return
        path = Path(self.get_ext_fullpath(ext.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        options = ["-shared", "-g0", *([] if SYSTEM == "win" else ["-fPIC"]), *ext.extra_compile_args]
        options += [f"-I{folder}" for folder in ext.include_dirs]
        try:
            subprocess.run([*command, *options, *ext.sources, *ext.extra_link_args, "-o", str(path)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(str(error)) from error
        for by_product in (*path.parent.glob("*.lib"), *path.parent.glob("*.pdb")):  # of linkers for Windows
            by_product.unlink()


def extension(package: str, sources: Path, name: str, flags: list[str], link: list[str]) -> Extension:
    # All builds write their object files to the same paths: they must not be built in parallel.
    return Extension(
        f"dragoman.{package}.native._{name}",
        sources=[path.as_posix() for path in sorted(sources.glob("*.cpp"))],
        depends=[path.as_posix() for folder in (SOURCES, KERNELS) for path in sorted(folder.glob("*.h"))],
        include_dirs=[KERNELS.as_posix()],  # simd.h
        extra_compile_args=[*COMMON, *flags],
        extra_link_args=link,
        language="c++",
        optional=True,
    )


builds = [CPU] if MACHINE in BUILDS else []
for name, flags in BUILDS.get(MACHINE, {}).items():
    builds.append(extension("decoding", SOURCES, name, flags, ["-pthread"]))
    # The kernels of training steps; nn/fast/native/library.py decides which one is used.  They have no products of
    # bytes.  OpenMP: PyTorch has loaded its library already, so that both share their threads.
    if SYSTEM == "linux" and name in ("avx512", "avx2", "neon"):
        flags = [flag for flag in flags if flag != "-mavx512vnni"]
        builds.append(extension("nn.fast", KERNELS, name, [*flags, "-fopenmp"], ["-fopenmp"]))
setup(ext_modules=builds, cmdclass={"bdist_wheel": Wheel, "build_ext": Build})
