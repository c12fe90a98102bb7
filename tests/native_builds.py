"""Select the build of a C++ library that a test uses; for AVX-512, also one with its instructions in plain C++."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from filelock import FileLock

from dragoman.decoding.native import library as engine
from dragoman.decoding.native.library import NativeLibrary
from dragoman.nn.fast.native import library as training

EMULATED = "avx512, AMX, emulated"
BUILDS = ("avx512", "avx2", EMULATED)
"""Builds of the engine.  EMULATED has the instructions of AVX-512 and AMX in plain C++."""

_HERE = Path(__file__).parent / "parity"
_EMULATED_VECTORS = f'-DDRAGOMAN_VECTOR_INSTRUCTIONS="{_HERE / "emulated_avx512.h"}"'
EMULATED_TILES = f'-DDRAGOMAN_TILE_INSTRUCTIONS="{_HERE / "emulated_tiles.h"}"'
_FLAGS = ["-shared", "-fPIC", "-pthread", "-std=c++17", "-O1", "-fno-math-errno", "-ffp-contract=off"]
_FLAGS += ["-mavx2", "-mfma", "-mf16c", "-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]


def use_build(build: str, folders: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> NativeLibrary:
    """Let the engine use one of BUILDS, or skip the test where it does not run."""
    if build == EMULATED:
        path = _emulated("engine", engine, [EMULATED_TILES], folders)
        emulated = NativeLibrary("avx512", engine._declare_functions(ctypes.CDLL(str(path))))
        monkeypatch.setattr(engine, "_load", lambda: (emulated, ""))
    else:
        monkeypatch.setattr(engine, "_BUILDS", (build,))
        monkeypatch.setattr(engine, "_load", engine._load.__wrapped__)
    loaded = engine.load_native()
    if loaded is None:
        pytest.skip(engine.unavailable_reason())
    assert loaded.build == build.split(",")[0]
    assert loaded.supports_amx or build != EMULATED
    return loaded


def use_kernels(folders: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training use its kernels; on a processor without AVX-512, with emulated instructions."""
    if training.kernels() is not None:
        return
    path = _emulated("kernels", training, ["-fopenmp"], folders)
    monkeypatch.setattr(training, "_built", lambda: [path])
    monkeypatch.setattr(training, "prefers_kernels", lambda cpuinfo: True)
    monkeypatch.setattr(training, "_load", cache(training._load.__wrapped__))
    assert training.kernels() is not None


def _emulated(name: str, package: ModuleType, flags: list[str], folders: pytest.TempPathFactory) -> Path:
    """Compile a library with emulated instructions; processes of one run of the tests share it."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    if not {"avx2", "fma", "f16c"} <= set(training._cpuinfo().split()):
        pytest.skip("this processor has no AVX2")
    base = folders.getbasetemp()
    compiled = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"emulated_{name}.so"
    with FileLock(compiled.with_suffix(".lock")):
        if not compiled.exists():
            sources = sorted(Path(str(package.__file__)).with_name("csrc").glob("*.cpp"))
            partial = compiled.with_suffix(".partial")
            subprocess.run(["g++", *_FLAGS, _EMULATED_VECTORS, *flags, *sources, "-o", partial], check=True)
            partial.replace(compiled)
    return compiled
