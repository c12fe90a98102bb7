"""The kernels for ARM64, cross-compiled and run by qemu, give the bits of those for AVX2."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest

from dragoman.decoding.native import library
from native_builds import require_avx2

HERE = Path(__file__).parent
SOURCES = Path(library.__file__).parent / "csrc"
SEAM = {"simd.h", "int8.h", "tiles.h"}
INSTRUCTION = re.compile(r"\b_mm\d*_|\bv\w+q?_[fsu]\d+\(|immintrin|arm_neon|\basm\b")
PROCESSORS = {"neon": "cortex-a53", "dotprod": "neoverse-n1", "i8mm": "max"}


def test_instructions_of_one_architecture_are_in_few_files() -> None:
    assert {path.name for path in SOURCES.glob("*.*") if INSTRUCTION.search(path.read_text())} == SEAM


@pytest.mark.thorough
def test_the_bits_of_avx2_on_three_processors(tmp_path: Path) -> None:
    cross, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if cross is None or emulator is None:
        pytest.skip("needs apt-get install g++-aarch64-linux-gnu qemu-user")
    require_avx2()
    with patch("setuptools.setup"):
        builds = runpy.run_path(str(HERE.parents[1] / "setup.py"))["BUILDS"]
    kernels = [HERE / "same_bits.cpp", *(SOURCES / f"{name}.cpp" for name in ("gemm", "ops", "kv_cache", "amx"))]

    def printed(build: str, compiler: str, flags: list[str], *emulated: str) -> list[str]:
        options = ["-static", "-std=c++17", "-O1", "-ffp-contract=off", "-w", "-I", str(SOURCES)]
        subprocess.run([compiler, *options, *flags, *kernels, "-o", tmp_path / build], check=True)
        return subprocess.check_output([*emulated, tmp_path / build], text=True).splitlines()

    expected = printed("avx2", "g++", builds["x86_64"]["avx2"])
    assert len(expected) == 67 and expected.count("0 sums differ from the formula") == 2
    for build, processor in PROCESSORS.items():
        flags = builds["aarch64"][build]
        assert printed(build, cross, flags, emulator, "-cpu", processor) == expected, build
