"""The builds of the native engine, for tests of each of them, and one with emulated instructions."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from dragoman.decoding.native import library
from dragoman.decoding.native.library import NativeLibrary, load_native, unavailable_reason

__all__ = ["BUILDS", "EMULATED_TILES", "use_build"]

EMULATED = "avx512, AMX, emulated"
BUILDS = ("avx512", "avx2", EMULATED)
"""EMULATED has the instructions of AVX-512 and AMX in plain C++ and runs on every processor with AVX2."""

_HERE = Path(__file__).parent / "parity"
_SOURCES = Path(library.__file__).parent / "csrc"
_EMULATED_VECTORS = f'-DDRAGOMAN_VECTOR_INSTRUCTIONS="{_HERE / "emulated_avx512.h"}"'
EMULATED_TILES = f'-DDRAGOMAN_TILE_INSTRUCTIONS="{_HERE / "emulated_tiles.h"}"'
_FLAGS = ["-shared", "-fPIC", "-pthread", "-std=c++17", "-O1", "-ffp-contract=off", "-mavx2", "-mfma", "-mf16c"]
_FLAGS += ["-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]


def use_build(build: str, folders: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> NativeLibrary:
    """Let the engine use one of BUILDS, or skip the test where it does not run."""
    if build == EMULATED:
        emulated = NativeLibrary("avx512", library._declare_functions(ctypes.CDLL(str(_compiled(folders)))))
        monkeypatch.setattr(library, "_load", lambda: (emulated, ""))
    else:
        monkeypatch.setattr(library, "_BUILDS", (build,))
        monkeypatch.setattr(library, "_load", library._load.__wrapped__)
    loaded = load_native()
    if loaded is None:
        pytest.skip(unavailable_reason())
    assert loaded.build == build.split(",")[0]
    assert loaded.supports_amx or build != EMULATED
    return loaded


def _compiled(folders: pytest.TempPathFactory) -> Path:
    """Compile the library with emulated instructions; processes of one run of the tests share it."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    base = folders.getbasetemp()
    compiled = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulated.so"
    with FileLock(compiled.with_name("emulated.lock")):
        if not compiled.exists():
            partial = compiled.with_name("emulated.partial.so")
            sources = sorted(_SOURCES.glob("*.cpp"))
            subprocess.run(["g++", *_FLAGS, _EMULATED_VECTORS, EMULATED_TILES, *sources, "-o", partial], check=True)
            partial.replace(compiled)
    return compiled
