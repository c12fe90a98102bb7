"""Select the build of a C++ library that a test uses; for AVX-512, also one with its instructions in plain C++."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from filelock import FileLock

from dragoman.decoding.native import library as engine
from dragoman.decoding.native.library import NativeLibrary
from dragoman.nn.fast.native import library as training

EMULATED = "avx512, AMX, emulated"
BUILDS = ("avx512", "avx2", EMULATED)
"""Builds of the engine.  EMULATED has the instructions of AVX-512 and AMX in plain C++."""

_HERE = Path(__file__).parent / "parity"
EMULATED_VECTORS = ['-DDRAGOMAN_VECTOR_INSTRUCTIONS="emulated_avx512.h"', "-mavx2", "-mfma", "-mf16c", f"-I{_HERE}"]
EMULATED_TILES = '-DDRAGOMAN_TILE_INSTRUCTIONS="emulated_tiles.h"'
_FLAGS = ["-shared", "-fPIC", "-pthread", "-std=c++17", "-O1", "-fno-math-errno", "-ffp-contract=off"]
_FLAGS += ["-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]


def use_build(build: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> NativeLibrary:
    """Let the engine use one of BUILDS, or skip the test where it does not run."""
    if build == EMULATED:
        path = request.getfixturevalue("emulated_engine")
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


def use_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training use its kernels; where they were not built, those with emulated instructions."""
    if training.kernels() is not None:
        return
    path = request.getfixturevalue("emulated_kernels")
    monkeypatch.setattr(training, "_built", lambda: [path])
    monkeypatch.setattr(training, "_load", cache(training._load.__wrapped__))
    assert training.kernels() is not None


def without_kernels() -> AbstractContextManager[Any]:
    """Use PyTorch's operations in place of the training kernels for the duration of a block."""
    return patch.object(training, "_load", lambda: None)


def with_products(enabled: bool) -> AbstractContextManager[Any]:
    """Compute matrix products by the training kernels, if they are used, or by PyTorch for the duration of a block."""
    return patch.object(training, "prefers_products", lambda cpuinfo: enabled)


def require_avx2() -> None:
    """Skip without a compiler or AVX2."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    if not {"avx2", "fma", "f16c"} <= set(training._cpuinfo().split()):
        pytest.skip("this processor has no AVX2")


def emulated_library(name: str) -> Path:
    """Compile the "engine" or the "kernels" with emulated instructions, unless these sources were compiled before."""
    require_avx2()
    vectors = Path(training.__file__).with_name("csrc")  # simd.h, for both
    folder = Path(engine.__file__).with_name("csrc") if name == "engine" else vectors
    flags = [EMULATED_TILES] if name == "engine" else ["-fopenmp"]
    options = [*_FLAGS, *EMULATED_VECTORS[:-1], *flags]
    compiler = subprocess.check_output(["g++", "-dumpfullversion", "-dumpmachine"])
    digest = hashlib.sha256(compiler + repr(options).encode())  # of no path, so that other copies of the project use it
    for path in sorted([*folder.rglob("*.*"), vectors / "simd.h", *_HERE.glob("emulated_*.h")]):
        digest.update(path.read_bytes())
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dragoman-tests")
    kept.mkdir(parents=True, exist_ok=True)
    compiled = kept / f"{name}-{digest.hexdigest()[:16]}.so"
    with FileLock(compiled.with_suffix(".lock")):
        if not compiled.exists():
            partial = compiled.with_suffix(".partial")
            sources = sorted(folder.glob("*.cpp"))
            subprocess.run(["g++", *options, EMULATED_VECTORS[-1], "-I", vectors, *sources, "-o", partial], check=True)
            partial.replace(compiled)
    return compiled
