"""The two tiers of tests: `tiers.toml` names the cases marked `thorough`; what each case costs is recorded and checked.

`python tests/tiers.py RESULTS.xml` compares tiers.toml with the JUnit file of a run (`-m "not slow" --junitxml=...`).
"""

from __future__ import annotations

import os
import re
import sys
import time
import tomllib
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

LIST = Path(__file__).with_name("tiers.toml")
THOROUGH, TOO_MUCH = 0.5, 12.0
"""CPU seconds above which a case is thorough, and above which one that is not listed fails: far more, because
processors differ, and because the processes of earlier cases may still run."""

_tier = pytest.StashKey[str]()
stale_entries = pytest.StashKey[list[str]]()


class Entries:
    """One table of tiers.toml.  An entry is a file, a function or a case; `*` stands for any characters in brackets."""

    def __init__(self, entries: Iterable[str]) -> None:
        self.entries = list(entries)
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for entry in self.entries:
            self._by_name[entry.partition("[")[0]].append(entry)

    def selecting(self, nodeid: str) -> list[str]:
        """The entries that select a case."""
        name, _, case = nodeid.partition("[")
        found = self._by_name.get(name.partition("::")[0], []) + self._by_name.get(name, [])
        return [entry for entry in found if _matches(entry.partition("[")[2], case)]


def _matches(pattern: str, case: str) -> bool:
    return not pattern or re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), case, re.DOTALL) is not None


def read_list() -> tuple[Entries, Entries, dict[str, int]]:
    """Return the entries of thorough cases and of witnesses, and the functions of whose cases one in so many is run."""
    tables = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return Entries(tables["thorough"]), Entries(tables["witnesses"]), tables.get("sampled", {})


# ------------------------------------------------------------------------------------------------------------ selection


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough-part", metavar="K/N", help="of thorough cases, run only the K-th of N parts")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    thorough, witnesses, sampled = read_list()
    part, parts = map(int, (config.getoption("--thorough-part") or "0/1").split("/"))
    used: set[str] = set()
    kept, dropped = [], []
    numbers: dict[str, int] = defaultdict(lambda: -1)
    for item in items:
        exempt, listed = witnesses.selecting(item.nodeid), thorough.selecting(item.nodeid)
        used.update(exempt, listed)
        is_marked = item.get_closest_marker("thorough") is not None
        tier = "thorough" if is_marked else "witness" if exempt else "thorough" if listed else "default"
        if (name := item.nodeid.partition("[")[0]) in sampled and tier == "default":
            used.add(name)
            numbers[name] += 1
            if (numbers[name] - zlib.crc32(name.partition("::")[0].encode())) % sampled[name]:
                tier = "thorough"
        if item.get_closest_marker("slow"):
            tier = "slow"
        elif tier == "thorough" and not is_marked:
            item.add_marker("thorough")
        item.stash[_tier] = tier
        item.user_properties.append(("tier", tier))
        other = tier == "thorough" and zlib.crc32(item.nodeid.encode()) % parts != part
        (dropped if other else kept).append(item)
    # The other entries of a file may be right if only some of its cases were collected.
    whole = {item.nodeid.partition("::")[0] for item in items if not any("::" in arg for arg in config.args)}
    missing = [entry for entry in (*thorough.entries, *witnesses.entries, *sampled) if entry not in used]
    files = {entry: entry.partition("::")[0] for entry in missing}
    config.stash[stale_entries] = [
        e for e, file in files.items() if file in whole or not (config.rootpath / file).exists()
    ]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


# ----------------------------------------------------------------------------------------------------------------- cost


class Meter:
    """CPU seconds of this process and of the processes that it has started: they do not grow because others run."""

    def __init__(self) -> None:
        self.running = 0.0  # of processes that had not ended when it was last measured
        self.shared = 0.0  # of fixtures that are not the case's own

    def start(self) -> None:
        self.began, self.clock, self.loaded, self.shared = _own(), time.perf_counter(), _loaded(), 0.0

    def used(self) -> float:
        own = _own() - self.began - self.shared
        # Looking for other processes takes longer than most cases do.
        brief = max(own, time.perf_counter() - self.clock) < 0.1
        return own if brief else own + self.running_since()

    def running_since(self) -> float:
        before, self.running = self.running, _of_children("self")
        return self.running - before


_meter = Meter()


def _loaded() -> int:
    """A number that grows by 20 or more when a large package is imported, or the fork server has imported its own."""
    return len(sys.modules) + 20 * (forkserver._forkserver._forkserver_pid is not None)  # type: ignore[attr-defined]


def _own() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _of_children(parent: str) -> float:
    """CPU seconds of the running processes that a process has started, and of theirs, on Linux; elsewhere 0."""
    seconds = 0.0
    with suppress(OSError):  # a process has just ended
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            for pid in file.read_text().split():
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + _of_children(pid)
    return seconds


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    _meter.start()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """What several cases share is not charged to the first of them."""
    before = _own()
    result = yield
    if fixturedef.scope != "function":
        _meter.shared += _own() - before
        _meter.running_since()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    yield
    cost = _meter.used()
    if _loaded() >= _meter.loaded + 20:
        return  # it paid for the cases after it
    item.user_properties.append(("cpu_seconds", round(cost, 3)))
    if cost > TOO_MUCH and item.stash[_tier] == "default":
        pytest.fail(
            f"used {cost:.1f} CPU seconds; accepted in the default tier: {THOROUGH}. Make it cheaper, or list it in "
            f"{LIST.name}: under [thorough], or under [witnesses] if no other default case tests the same.\n"
            f"'{item.nodeid}' = {cost:.1f}",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    before = _own()
    yield
    if _own() - before > 0.05:  # perhaps a process has ended
        _meter.running_since()


# ----------------------------------------------------------------------------------------------------------- JUnit file


def problems(results: Path) -> list[str]:
    """Return cases of a JUnit file that cost too much and are not listed, and entries that select none of its cases."""
    lists = read_list()[:2]
    found, used = [], set()
    for case in ElementTree.parse(results).iter("testcase"):
        nodeid = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        entries = [entry for table in lists for entry in table.selecting(nodeid)]
        used.update(entries)
        properties = {p.get("name"): p.get("value", "") for p in case.iter("property")}
        cost = float(properties.get("cpu_seconds", 0))
        if cost > THOROUGH and not entries and properties.get("tier") == "default":
            found.append(f"not listed: '{nodeid}' = {cost:.1f}")
    return found + [f"selects no case: {e!r}" for table in lists for e in table.entries if e not in used]


if __name__ == "__main__":
    told = problems(Path(sys.argv[1]))
    sys.exit("\n".join(told) if told else 0)
