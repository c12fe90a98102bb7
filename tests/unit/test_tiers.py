"""The list of the tiers of tests selects what it says, and cases of no test are not in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tiers import Entries, Meter, problems, read_list, stale_entries

pytest_plugins = ["pytester"]

CASES = """
import pytest

@pytest.mark.parametrize("n", [*range(40), pytest.param("marked", marks=pytest.mark.thorough)])
def test_cheap(n): pass

@pytest.mark.parametrize("kind", ["a b", "a [c]"])
def test_listed(kind): pass

def test_busy():
    import time
    begun = time.process_time()
    while time.process_time() < begun + 0.25: pass
"""


def test_entries_select_files_functions_and_cases() -> None:
    entries = Entries(["t/a.py", "t/b.py::f", "t/b.py::g[x*y]", "t/b.py::h[a [c]]"])
    assert entries.selecting("t/a.py::f[1]") == ["t/a.py"]
    assert entries.selecting("t/b.py::f") == entries.selecting("t/b.py::f[1]") == ["t/b.py::f"]
    assert entries.selecting("t/b.py::g[x.[y]") == ["t/b.py::g[x*y]"]
    assert entries.selecting("t/b.py::h[a [c]]") == ["t/b.py::h[a [c]]"]
    for other in ("t/b.py::ff", "t/b.py::g[xyz]", "t/b.py::g", "t/b.py::h[a c]"):
        assert entries.selecting(other) == []


def test_every_entry_selects_a_case(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash[stale_entries] == [], "remove these from tests/tiers.toml, or write their new names"
    thorough, witnesses, sampled = read_list()
    assert set(thorough.entries) & set(witnesses.entries) == set() == set(thorough.entries) & set(sampled)


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with tests of its own and a list for them."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(test_a=CASES, conftest="from tiers import *")
    pytester.makeini("[pytest]\naddopts = -m 'not thorough'\nmarkers = thorough")
    listed = "[thorough]\n'test_a.py::test_listed[*]' = 2.0\n'test_a.py::test_gone' = 1.0\n"
    listed += "[witnesses]\n'test_a.py::test_cheap[m*]' = ''\n"
    pytester.makefile(".toml", tiers=listed + "[sampled]\n'test_a.py::test_cheap' = 4\n")
    return pytester


@contextmanager
def lower_limits(folder: pytest.Pytester) -> Iterator[None]:
    """Tests that run inside this one have its list, a meter of their own and lower limits.

    No garbage is collected meanwhile: after thousands of tests, that takes longer than these limits.
    """
    values = {"LIST": folder.path / "tiers.toml", "THOROUGH": 0.1, "TOO_MUCH": 0.2, "_meter": Meter()}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(f"tiers.{name}", value)
        gc.disable()
        try:
            yield
        finally:
            gc.enable()


def test_a_case_of_the_default_tier_that_costs_too_much_fails(folder: pytest.Pytester) -> None:
    with lower_limits(folder):
        done = folder.runpytest_inprocess()
    done.assert_outcomes(passed=10, failed=1, deselected=33)
    done.stdout.fnmatch_lines(["used * CPU seconds; accepted in the default tier: 0.1.*", "'test_a.py::test_busy' = *"])


def test_parts_of_the_thorough_tier(folder: pytest.Pytester) -> None:
    with lower_limits(folder):
        whole = folder.runpytest_inprocess("-m", "thorough")
        parts = [folder.runpytest_inprocess("-m", "thorough", f"--thorough-part={k}/2") for k in range(2)]
    whole.assert_outcomes(passed=33, deselected=11)
    assert sum(part.parseoutcomes().get("passed", 0) for part in parts) == 33


def test_problems_of_a_junit_file(folder: pytest.Pytester) -> None:
    with lower_limits(folder):
        folder.runpytest_inprocess("-m", "", "--junitxml=results.xml")
        told = problems(folder.path / "results.xml")
    assert len(told) == 2 and told[0].startswith("not listed: 'test_a.py::test_busy' = ")
    assert told[1] == "selects no case: 'test_a.py::test_gone'"
