"""Without the native engine: no compiler, no vector instructions, a build that fails; the plain path does the work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import DragomanError, UsageError
from dragoman.fast import native
from dragoman.fast.engine import Engine
from dragoman.translate import Translator
from small_run import Cli

REPOSITORY = Path(__file__).parents[2]
LINES = ["one two three", "", "four", "nine eight seven six five"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder in which the native core is looked for: an empty one."""
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    native._found.cache_clear()
    yield tmp_path
    native._found.cache_clear()


class Libraries:
    """In place of ctypes.CDLL: what loading each file comes to."""

    def __init__(self, **outcomes: int | str) -> None:
        self.outcomes = outcomes

    def __call__(self, path: str) -> Any:
        outcome = self.outcomes[Path(path).name.split(".")[0]]
        if isinstance(outcome, str):
            raise OSError(outcome)

        class Function:
            def __call__(self) -> int:
                return int(outcome)

        class Library:
            def __getattr__(self, name: str) -> Function:
                return Function()

        return Library()


def test_nothing_was_built(installed: Path) -> None:
    assert native.load_native() is None
    assert "compiler" in native.missing() and "install" in native.missing()
    with pytest.raises(DragomanError, match="compiler"):
        Engine(installed / "packed")


def test_a_processor_without_the_instructions(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_avx512.so", "_avx2.so"):
        (installed / name).touch()
    monkeypatch.setattr("ctypes.CDLL", Libraries(_avx512=0, _avx2=0))

    assert native.load_native() is None
    assert "processor" in native.missing() and "_avx2" in native.missing()


def test_a_library_of_another_system(installed: Path) -> None:
    for name in ("_avx512.so", "_avx2.so"):
        (installed / name).write_bytes(b"not a library")

    assert native.load_native() is None
    assert "_avx512.so cannot be loaded" in native.missing() and "_avx2.so cannot be loaded" in native.missing()


def test_the_fastest_that_the_processor_can_run_is_taken(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_avx512.so", "_avx2.so"):
        (installed / name).touch()
    for outcomes, expected in (
        ({"_avx512": 1, "_avx2": 1}, "avx512"),
        ({"_avx512": 0, "_avx2": 1}, "avx2"),
        ({"_avx512": "no such symbol", "_avx2": 1}, "avx2"),
    ):
        monkeypatch.setattr("ctypes.CDLL", Libraries(**outcomes))
        native._found.cache_clear()
        found = native.load_native()
        assert found is not None and found.build == expected
        assert native.missing() == ""


# ---------------------------------------------------------------------------------------------------- the installation


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    pytest.importorskip("setuptools", reason="needs setuptools, as every build does")
    shutil.copy(REPOSITORY / "setup.py", tmp_path)
    shutil.copytree(REPOSITORY / "src/dragoman/fast/native", tmp_path / "src/dragoman/fast/native")
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
    assert 'building extension "dragoman.fast._avx2" failed' in done.stdout + done.stderr


def test_a_source_that_no_compiler_takes_is_no_failed_installation(sources: Path) -> None:
    first = min((sources / "src/dragoman/fast/native").glob("*.cpp"))
    first.write_text("#error this compiler is too old\n")
    done = build(sources)

    assert done.returncode == 0, done.stderr
    assert not list(sources.rglob("*.so"))


@pytest.mark.slow
def test_with_a_compiler_there_are_two_builds(sources: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine to build the core with")
    done = build(sources)

    assert done.returncode == 0, done.stderr
    assert {path.name.split(".")[0] for path in sources.rglob("*.so")} == {"_avx512", "_avx2"}


# ------------------------------------------------------------------------------------------------------- the plain path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(REPOSITORY / "tests/golden/model_v1", tmp_path / "model")


def test_the_plain_path_translates_and_says_why(installed: Path, model: Path) -> None:
    translator = Translator.load(model)

    assert translator.about.startswith("plain path") and native.missing() in translator.about
    assert translator.translate(LINES) == Translator.load(model, engine="plain").translate(LINES)
    assert not (model / "packed").exists()


@pytest.mark.parametrize("asked", [{"engine": "fast"}, {"quantize": "int8"}, {"quantize": "bf16"}])
def test_what_only_the_engine_has_is_refused_with_the_reason(
    asked: dict[str, Any], installed: Path, model: Path
) -> None:
    with pytest.raises(UsageError, match="compiler") as error:
        Translator.load(model, **asked)
    assert "accepted" in str(error.value)


def test_the_command_says_it_once_and_translates(
    installed: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    cli = Cli(monkeypatch, capsysbinary)
    code, out, err = cli("translate", model, stdin="".join(f"{line}\n" for line in LINES).encode())
    assert code == 0 and out.count(b"\n") == len(LINES)
    assert err.count(native.missing()) == 1

    code, out, err = cli("translate", model, "--engine", "fast", stdin=b"one\n")
    assert (code, out) == (2, b"") and native.missing() in err
