"""Products in the tile registers of AMX: with the instructions in plain C++, and on a processor that has them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dragoman.decoding.native import library

HERE = Path(__file__).parent
SOURCES = Path(library.__file__).parent / "csrc"
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
BUILDS = {
    "emulated": ["-mavx2", "-mfma", "-mf16c", f'-DDRAGOMAN_TILES_HEADER="{HERE / "emulated_tiles.h"}"'],
    "processor": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma", "-mf16c"],
}
NEEDED = {"emulated": "avx2", "processor": "amx_int8"}


@pytest.mark.parametrize("build", BUILDS)
def test_products_equal_the_formula_to_the_last_bit(build: str, tmp_path: Path) -> None:
    features = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    if NEEDED[build] not in features:
        pytest.skip(f"this processor has no {NEEDED[build]}")
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    program = tmp_path / "products"
    sources = [HERE / "amx_products.cpp", SOURCES / "amx.cpp"]
    subprocess.run(["g++", *FLAGS, *BUILDS[build], "-I", SOURCES, *sources, "-o", program], check=True)

    found = subprocess.run([program], capture_output=True, text=True, check=False)

    if build == "processor" and "not permitted" in found.stdout:
        pytest.skip("the operating system does not permit AMX")
    assert (found.stdout, found.stderr, found.returncode) == ("136 products, 0 outputs differ\n", "", 0)
