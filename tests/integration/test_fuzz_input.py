"""bench/fuzz_input.py: a short run finds nothing, and what it looks for is found where it is."""

from __future__ import annotations

import importlib
import os
import random
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
BROKEN = """
import fuzz_input, fuzz_targets, os, signal, sys, time
from dragoman.errors import ConfigError, DataError

def signalled(folder, draw): os.kill(os.getpid(), signal.SIGBUS)
def hanging(folder, draw): time.sleep(60)
def raising(folder, draw): [][draw.randint(5, 5)]
def differing(folder, draw): raise fuzz_targets.Difference("another loss")
def silent(folder, draw): raise DataError("")
def endless(folder, draw): raise DataError("x" * 9000)
def leaving(folder, draw): os._exit(0)
def refusing(folder, draw): raise ConfigError("it", ["a problem"])
def good(folder, draw): return "read"

fuzz_input.HANGS, fuzz_input.warm_up = 1.0, lambda targets, folder: None
for targets in (fuzz_targets.TARGETS, fuzz_input.TARGETS):
    targets.clear()
    targets.update({f.__name__: f for f in (
        signalled, hanging, raising, differing, silent, endless, leaving, refusing, good)})
sys.exit(fuzz_input.main(["--seed", "1", "--cases", "40", *sys.argv[1:]]))
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="cases are forked")


def said(*command: str) -> tuple[int, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(BENCH), *sys.path])}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, cwd=BENCH)
    return done.returncode, done.stdout + done.stderr


def test_sixty_damaged_configurations() -> None:
    targets = ("--targets", "configuration,overrides,toml")
    code, out = said("fuzz_input.py", "--seed", "20170612", "--cases", "60", *targets)
    assert code == 0, out
    assert "seed 20170612" in out and "60 cases of seed 20170612: 0 failed" in out
    assert all(f"{target}: refused" in out for target in ("configuration", "overrides", "toml"))


def test_a_case_is_replayed_with_its_output() -> None:
    code, out = said("fuzz_input.py", "--seed", "5", "--case", "11", "--targets", "configuration")
    assert code == 0 and "1 cases of seed 5: 0 failed" in out
    assert re.search(r"ConfigError: configuration: \d+ problems?\n", out), "a single case prints its outcome"


def test_a_case_follows_from_its_seed_and_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    damage: Any = importlib.import_module("fuzz_targets")
    found = []
    for number in (1, 1, 2):
        document = tomllib.loads((BENCH.parent / "recipes" / "multi30k.toml").read_text(encoding="utf-8"))
        damage.damage_document(document, random.Random(number))
        found.append((document, damage.damage_bytes(b"a line\nanother\n" * 9, random.Random(number))))
    assert repr(found[0]) == repr(found[1]) != repr(found[2])


def test_every_kind_of_failure_is_reported_with_its_cases() -> None:
    code, out = said("-c", BROKEN)
    assert code == 1
    for kind in (
        "signalled: FAILED signal SIGBUS", "hanging: FAILED hang", "raising: FAILED IndexError at",
        "differing: FAILED silent difference", "silent: FAILED message", "endless: FAILED message",
        "leaving: FAILED without an answer", "refusing: refused", "good: read",
    ):  # fmt: skip
        assert kind in out, (kind, out)
    assert "another loss" in out and "--seed 1 --case " in out
    assert said("-c", BROKEN, "--targets", "refusing,good")[0] == 0, "without a failure the exit code is 0"


@pytest.mark.slow
def test_every_target() -> None:
    code, out = said("fuzz_input.py", "--seed", "1", "--cases", "400")
    assert code == 0, out
