"""Without the native engine (no compiler, no vector instructions, a failed build) the PyTorch backend is used."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.decoding import native as engine_package
from dragoman.decoding.native import library as native
from dragoman.decoding.native.engine import Engine
from dragoman.errors import DragomanError, UsageError
from dragoman.pipelines.translation import Translator
from small_run import Cli

REPOSITORY = Path(__file__).parents[2]
NATIVE, KERNELS = "src/dragoman/decoding/native/csrc", "src/dragoman/nn/fast/native/csrc"
LINES = ["one two three", "", "four", "nine eight seven six five"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder in which the native core is looked for: an empty one."""
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    native._load.cache_clear()
    yield tmp_path
    native._load.cache_clear()


class Libraries:
    """In place of ctypes.CDLL, on a processor that runs some builds; a file named in `broken` cannot be loaded.

    loaded: the vector builds that were loaded, in order.
    """

    def __init__(self, runs: tuple[str, ...], broken: tuple[str, ...] = ()) -> None:
        self.runs, self.broken = runs, broken
        self.loaded: list[str] = []

    def __call__(self, path: str) -> Any:
        name, runs = Path(path).name.split(".")[0], self.runs
        if name in self.broken:
            raise OSError("no such symbol")
        if name != "_cpu":
            self.loaded.append(name)

        class Function:
            def __call__(self, build: bytes | None = None) -> int:
                return native.INTERFACE if build is None else int(build.decode() in runs)

        class Library:
            def __getattr__(self, name: str) -> Function:
                return Function()

        return Library()


BUILT = ("_cpu.so", "_avx512.so", "_avx2.so")


def test_nothing_was_built(installed: Path) -> None:
    assert native.load_native() is None
    assert "compiler" in native.unavailable_reason() and "install" in native.unavailable_reason()
    with pytest.raises(DragomanError, match="compiler"):
        Engine(installed / "packed")


def test_no_build_is_loaded_on_a_processor_without_its_instructions(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading runs static initialisers, which may already use the missing instructions and end the process."""
    for name in BUILT:
        (installed / name).touch()
    libraries = Libraries(runs=())
    monkeypatch.setattr("ctypes.CDLL", libraries)

    assert native.load_native() is None
    assert libraries.loaded == []
    assert (
        "processor lacks instructions of _avx512.so; this processor lacks instructions of _avx2"
        in native.unavailable_reason()
    )


def test_the_processor_is_checked_by_code_without_vector_registers() -> None:
    """Registers ymm and zmm, and the encoding that names begin with v for, exist on some x86-64 processors only."""
    library = next(Path(engine_package.__file__).parent.glob("_cpu.*"), None)
    if library is None or shutil.which("objdump") is None or platform.machine() != "x86_64":
        pytest.skip("no _cpu library for x86-64, or no objdump to read it with")
    listing = subprocess.run(["objdump", "-d", library], capture_output=True, text=True, check=True).stdout
    instructions = [line.split("\t")[2].split()[0] for line in listing.splitlines() if line.count("\t") >= 2]

    assert "cpuid" in instructions or "__cpu_model" in listing or "__cpu_indicator_init" in listing
    assert [name for name in instructions if name.startswith("v")] == []


def test_the_check_of_this_processor_agrees_with_the_system(installed: Path) -> None:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split() if Path("/proc/cpuinfo").exists() else []
    here = Path(engine_package.__file__).parent
    if not flags or not list(here.glob("_cpu.*")):
        pytest.skip("no _cpu library, or no /proc/cpuinfo to compare it with")
    needed = {"avx512": "avx512f avx512bw avx512vl avx512dq avx512_vnni fma f16c", "avx2": "avx2 fma f16c"}
    for build, names in needed.items():
        lacking = native._unsupported_reason(here, build, installed / f"_{build}.so")
        assert (lacking == "") == (set(names.split()) <= set(flags)), lacking


def test_a_library_of_another_system(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BUILT:
        (installed / name).write_bytes(b"not a library")
    assert native.load_native() is None
    assert native.unavailable_reason().count("_cpu.so cannot be loaded") == 2

    monkeypatch.setattr(native, "_unsupported_reason", lambda *_: "")
    native._load.cache_clear()
    assert native.load_native() is None
    assert (
        "_avx512.so cannot be loaded" in native.unavailable_reason()
        and "_avx2.so cannot be loaded" in native.unavailable_reason()
    )


def test_a_library_of_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Structures of another layout would be read as other settings, in silence."""
    if native.load_native() is None:
        pytest.skip(native.unavailable_reason())
    monkeypatch.setattr(native, "INTERFACE", native.INTERFACE + 1)
    native._load.cache_clear()
    try:
        assert native.load_native() is None
        assert (
            f"(interface {native.INTERFACE - 1}, not {native.INTERFACE}); reinstall Dragoman"
            in native.unavailable_reason()
        )
    finally:
        native._load.cache_clear()


def test_builds_without_the_library_that_checks_the_processor(installed: Path) -> None:
    (installed / "_avx2.so").write_bytes(b"never opened")
    assert native.load_native() is None
    assert (
        "_avx2.so has no _cpu library next to it" in native.unavailable_reason()
        and "install" in native.unavailable_reason()
    )


def test_the_fastest_that_the_processor_can_run_is_taken(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*BUILT, "_i8mm.so", "_dotprod.dylib", "_neon.dll"):
        (installed / name).touch()
    for libraries, expected in (
        (Libraries(runs=("i8mm", "dotprod", "neon")), "i8mm"),
        (Libraries(runs=("dotprod", "neon")), "dotprod"),
        (Libraries(runs=("neon",)), "neon"),
        (Libraries(runs=("avx512", "avx2")), "avx512"),
        (Libraries(runs=("avx2",)), "avx2"),
        (Libraries(runs=("avx512", "avx2"), broken=("_avx512",)), "avx2"),
    ):
        monkeypatch.setattr("ctypes.CDLL", libraries)
        native._load.cache_clear()
        found = native.load_native()
        assert found is not None and found.build == expected
        assert libraries.loaded == [f"_{expected}"] and native.unavailable_reason() == ""


# ---------------------------------------------------------------------------------------------------- the installation


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    pytest.importorskip("setuptools", reason="needs setuptools, as every build does")
    shutil.copy(REPOSITORY / "setup.py", tmp_path)
    for folder in (NATIVE, KERNELS):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    return tmp_path


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", "built"]
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=600
    )


def test_no_compiler_is_no_failed_installation(sources: Path) -> None:
    done = build(sources, CC="/nowhere/cc", CXX="/nowhere/c++", LDSHARED="/nowhere/cc", LDCXXSHARED="/nowhere/c++")

    assert done.returncode == 0, done.stderr
    assert not list(sources.rglob("*.so"))
    assert 'building extension "dragoman.decoding.native._avx2" failed' in done.stdout + done.stderr


def test_a_source_that_no_compiler_takes_is_no_failed_installation(sources: Path) -> None:
    for folder in (sources / NATIVE, sources / NATIVE / "cpu", sources / KERNELS):
        min(folder.glob("*.cpp")).write_text("#error this compiler is too old\n")
    done = build(sources)

    assert done.returncode == 0, done.stderr
    assert not list(sources.rglob("*.so"))


@pytest.mark.slow
def test_with_a_compiler_there_are_two_builds_of_each_library_and_the_check_of_the_processor(sources: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine to build the core with")
    done = build(sources)

    assert done.returncode == 0, done.stderr
    assert sorted(path.name[:5] for path in sources.rglob("*.so")) == ["_avx2", "_avx2", "_avx5", "_avx5", "_cpu."]


# --------------------------------------------------------------------------------------------------- PyTorch backend


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(REPOSITORY / "tests/golden/model_v1", tmp_path / "model")


def test_the_plain_path_translates_and_says_why(installed: Path, model: Path) -> None:
    translator = Translator.load(model)

    assert (
        translator.description.startswith("PyTorch backend") and native.unavailable_reason() in translator.description
    )
    assert translator.translate(LINES) == Translator.load(model, engine="pytorch").translate(LINES)
    assert not (model / "packed").exists()


@pytest.mark.parametrize("asked", [{"engine": "native"}, {"quantize": "int8"}, {"quantize": "bf16"}])
def test_what_only_the_engine_has_is_refused_with_the_reason(
    asked: dict[str, Any], installed: Path, model: Path
) -> None:
    with pytest.raises(UsageError, match="compiler") as error:
        Translator.load(model, **asked)
    assert "accepted" in str(error.value)


def test_the_command_says_it_once_and_translates(installed: Path, model: Path, cli: Cli) -> None:
    code, out, err = cli("translate", model, stdin="".join(f"{line}\n" for line in LINES).encode())
    assert code == 0 and out.count(b"\n") == len(LINES)
    assert err.count(native.unavailable_reason()) == 1

    code, out, err = cli("translate", model, "--engine", "native", stdin=b"one\n")
    assert (code, out) == (2, b"") and native.unavailable_reason() in err
