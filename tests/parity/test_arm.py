"""The kernels for ARM64, cross-compiled and run by qemu, and those of training for AVX-512 give the bits of AVX2's."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest

from dragoman.decoding.native import library
from dragoman.nn.fast.native import library as training
from native_builds import EMULATED_VECTORS, require_avx2

HERE = Path(__file__).parent
SOURCES, TRAINING = (Path(package.__file__).parent / "csrc" for package in (library, training))
SEAM = {"simd.h", "int8.h", "tiles.h"}
INSTRUCTION = re.compile(r"\b_mm\d*_|\bv\w+q?_[fsu]\d+\(|immintrin|arm_neon|\basm\b")
PROCESSORS = {"neon": "cortex-a53", "dotprod": "neoverse-n1", "i8mm": "max"}
PROGRAMS = {
    "same_bits": [SOURCES / f"{name}.cpp" for name in ("gemm", "ops", "kv_cache", "amx")],
    "same_training_bits": sorted(TRAINING.glob("*.cpp")),
}


def test_instructions_of_one_architecture_are_in_few_files() -> None:
    sources = [*SOURCES.glob("*.*"), *TRAINING.glob("*.*")]
    assert {path.name for path in sources if INSTRUCTION.search(path.read_text())} == SEAM


@pytest.mark.thorough
@pytest.mark.parametrize("program", PROGRAMS)
def test_all_builds_print_the_bits_of_avx2(program: str, tmp_path: Path) -> None:
    require_avx2()
    with patch("setuptools.setup"):
        builds = runpy.run_path(str(HERE.parents[1] / "setup.py"))["BUILDS"]
    sources = [HERE / f"{program}.cpp", *PROGRAMS[program]]

    def printed(compiler: str, flags: list[str], *emulated: str) -> list[str]:
        options = ["-static", "-std=c++17", "-O1", "-ffp-contract=off", "-w", f"-I{SOURCES}", f"-I{TRAINING}"]
        subprocess.run([compiler, *options, *flags, *sources, "-o", tmp_path / "program"], check=True)
        return subprocess.check_output([*emulated, tmp_path / "program"], text=True).splitlines()

    expected = printed("g++", builds["x86_64"]["avx2"])
    if program == "same_bits":
        assert len(expected) == 67 and expected.count("0 sums differ from the formula") == 2
    else:
        assert len(expected) == 168 and printed("g++", EMULATED_VECTORS) == expected
    cross, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if cross is None or emulator is None:
        pytest.skip("needs apt-get install g++-aarch64-linux-gnu qemu-user")
    for build, processor in PROCESSORS.items():
        assert printed(cross, builds["aarch64"][build], emulator, "-cpu", processor) == expected, build
