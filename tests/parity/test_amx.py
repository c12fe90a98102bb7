"""Products in the tile registers of AMX: with the instructions in plain C++, and on a processor that has them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from dragoman.decoding.native import library
from dragoman.nn.fast.native import library as training
from native_builds import EMULATED_TILES

HERE = Path(__file__).parent
SOURCES, TRAINING = (Path(package.__file__).parent / "csrc" for package in (library, training))
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-w", f"-I{SOURCES}", f"-I{TRAINING}"]
BUILDS = {
    "emulated": [
        "-mavx2", "-mfma", "-mf16c", EMULATED_TILES, f"-I{HERE}",
        "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
    ],
    "processor": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"],
}  # fmt: skip
NEEDED = {"emulated": "avx2", "processor": "amx_int8"}
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18
USE = """
#include "tiles.h"

void use(const void* from, size_t stride, void* to, const dragoman::TileSizes& sizes) {
  dragoman::configure_tiles(sizes);
  dragoman::zero_tile<3>();
  dragoman::load_tile<4>(from, stride);
  dragoman::multiply_tiles<0, 4, 6>();
  dragoman::store_tile<2>(to);
  dragoman::release_tiles();
}
"""

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.mark.parametrize("build", BUILDS)
def test_products_equal_the_formula_to_the_last_bit(build: str, tmp_path: Path) -> None:
    features = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    if NEEDED[build] not in features:
        pytest.skip(f"this processor has no {NEEDED[build]}")
    if build == "processor":
        require_compiler()
        if ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0:
            pytest.skip("the operating system does not permit AMX")
    program, sources = tmp_path / "products", [HERE / "amx_products.cpp", SOURCES / "amx.cpp"]
    subprocess.run(["g++", *FLAGS, *BUILDS[build], *sources, "-o", program], check=True)
    for first_block in ("0", "1"):
        found = subprocess.run([program, first_block], capture_output=True, text=True, check=False)
        assert (found.stdout, found.stderr, found.returncode) == ("136 products, 0 outputs differ\n", "", 0)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
def test_the_operands_of_the_instructions(tmp_path: Path) -> None:
    """In AT&T syntax, the sums are the last operand; a processor without AMX cannot execute the instructions."""
    require_compiler()
    source, compiled = tmp_path / "tiles.cpp", tmp_path / "tiles.o"
    source.write_text(USE)
    subprocess.run(["g++", *FLAGS, "-c", source, "-o", compiled], check=True)
    listed = subprocess.check_output(["objdump", "-d", "--no-show-raw-insn", compiled], text=True)
    lines = [line.split("\t", 1)[1].split() for line in listed.splitlines() if "\t" in line]
    assert [line for line in lines if "tile" in line[0] or line[0].startswith("tdp")] == [
        ["ldtilecfg", "(%rcx)"],
        ["tilezero", "%tmm3"],
        ["tileloadd", "(%rdi,%rsi,1),%tmm4"],
        ["tdpbusd", "%tmm6,%tmm4,%tmm0"],
        ["tilestored", "%tmm2,(%rdx,%rax,1)"],
        ["tilerelease"],
    ]


def require_compiler() -> None:
    """Skip if the compiler does not know AMX, or compiles for another processor."""
    headers = "__has_include(<amxint8intrin.h>) || __has_include(<amxintrin.h>)"
    known = f"#if !defined(__x86_64__) || !({headers})\n#error\n#endif"
    command = ["g++", "-x", "c++", "-fsyntax-only", "-"]
    if subprocess.run(command, input=known.encode(), capture_output=True, check=False).returncode:
        pytest.skip("g++ does not know AMX")
