"""The core without wings: the package is copied, folders of wings are deleted, and the rest trains and translates."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

import dragoman
from dragoman.extras import WINGS
from small_run import write_corpus, write_toml

ROOT = Path(dragoman.__file__).parent
TESTS = Path(__file__).parents[1]
COMMANDS = {
    "adapt": {"adapt", "prune"},
    "advice": {"adapt", "clean", "doctor", "new", "prune"},
    "bulk": set[str](),
    "documents": {"serve", "keys"},  # the server translates documents
    "formats": {"adapt", "export", "import", "prune"},
    "interpret": {
        "demo", "compare", "explain", "atlas", "walkthrough", "gallery", "playground", "serve", "keys", "vectors",
    },
    "serve": {"serve", "keys"},
    "tune": {"tune"},
    "vectors": {"vectors"},
}  # fmt: skip
"""Wing -> the commands that need it."""
CORE_TESTS = ("unit/test_nn_state.py", "unit/test_batching.py")


class Copy:
    """A copy of the package without some wings."""

    def __init__(self, folder: Path, without: Collection[str]) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder / "dragoman", ignore=shutil.ignore_patterns("__pycache__", "csrc"))
        for path in (folder / "dragoman" / part for wing in without for part in WINGS[wing]):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def python(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": ""}
        return subprocess.run(
            [sys.executable, *map(str, args)], env=environment, cwd=TESTS, text=True, capture_output=True, check=False
        )

    def commands(self) -> set[str]:
        shown = self.python("-m", "dragoman", "--help")
        assert shown.returncode == 0, shown.stderr
        return set(re.findall(r"^  (\w+)  ", shown.stdout.split("Commands:")[1], re.MULTILINE))

    def train_and_translate(self) -> None:
        data = write_corpus(self.folder / "data")
        config = write_toml(self.folder / "small.toml", data)
        run = self.folder / "run"
        trained = self.python("-m", "dragoman", "train", config, "--out", run)
        assert trained.returncode == 0, trained.stderr
        translated = self.python("-m", "dragoman", "translate", run, "--input", data / "valid.src")
        assert translated.returncode == 0, translated.stderr
        assert translated.stdout.count("\n") == (data / "valid.src").read_text().count("\n")


@pytest.fixture(scope="module")
def all_commands(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    commands = Copy(tmp_path_factory.mktemp("whole"), ()).commands()
    assert len(commands) > 20
    return commands


@pytest.mark.thorough
@pytest.mark.parametrize("wing", WINGS)
def test_only_the_commands_of_a_deleted_wing_are_missing(wing: str, tmp_path: Path, all_commands: set[str]) -> None:
    copy = Copy(tmp_path, [wing])
    assert all_commands - copy.commands() == COMMANDS[wing]
    for command in sorted(COMMANDS[wing])[:2]:
        called = copy.python("-m", "dragoman", command)
        assert called.returncode == 2
        assert f"'dragoman {command}' needs the part '{wing}' of Dragoman" in called.stderr


def test_the_core_alone_trains_and_translates(tmp_path: Path, all_commands: set[str]) -> None:
    copy = Copy(tmp_path, WINGS)
    assert all_commands - copy.commands() == set.union(*COMMANDS.values())
    copy.train_and_translate()
    bulk = copy.python("-m", "dragoman", "translate", copy.folder / "run", "--column", "text", "--input", __file__)
    assert bulk.returncode == 2 and "bulk translation needs the part 'bulk'" in bulk.stderr
    page = copy.python("-m", "dragoman", "translate", copy.folder / "run", "--format", "html", "--input", __file__)
    assert page.returncode == 2 and "--format html needs the part 'documents'" in page.stderr
    name = copy.python("-c", "import dragoman; dragoman.WordVectors.load('x')")
    assert "dragoman.WordVectors needs the part 'vectors' of Dragoman" in name.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("wing", WINGS)
def test_the_core_works_without_a_wing(wing: str, tmp_path: Path) -> None:
    copy = Copy(tmp_path, [wing])
    copy.train_and_translate()
    tests = copy.python("-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", *CORE_TESTS)
    assert tests.returncode == 0, tests.stdout
