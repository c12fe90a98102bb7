"""Lines of source, tests and programs stay below the ceilings of tests/budget.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from dragoman.extras import WINGS

ROOT = Path(__file__).parents[2]
BUDGET = tomllib.loads((ROOT / "tests" / "budget.toml").read_text(encoding="utf-8"))
COMMIT = "a1d07576"
"""The last commit with the programs of finished studies."""


def lines(files: Iterable[Path]) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in files)


def files(folder: str, *suffixes: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes and path.is_file()]


@cache
def counts() -> dict[str, int]:
    package, source = ROOT / "src" / "dragoman", files("src/dragoman", ".py")
    wings = [package / folder for folders in WINGS.values() for folder in folders]
    core = [path for path in source if not any(path.is_relative_to(wing) for wing in wings)]
    return {
        "core": lines(core), "wings": lines(source) - lines(core), "cpp": lines(files("src", ".cpp", ".h")),
        "pages": lines(files("src", ".html", ".css", ".js")), "tests": lines(files("tests", ".py")),
        "bench": lines(files("bench", ".py")),
        "scripts": lines([*files("docs", ".py"), *files("deploy", ".py"), *files("scripts", "")]),
    }  # fmt: skip


@pytest.mark.parametrize("name", BUDGET["lines"])
def test_lines_stay_below_the_ceiling_and_the_ceiling_falls_with_them(name: str) -> None:
    counted, ceiling = counts()[name], BUDGET["lines"][name]
    assert counted <= ceiling, "delete as many lines as you add, or give a reason for more in CHANGELOG.md"
    assert ceiling <= counted + BUDGET["slack"], f"lower {name} in tests/budget.toml to {-(-counted // 100) * 100:_}"


def test_every_count_has_a_ceiling_and_every_line_of_source_is_counted_once() -> None:
    counted = counts()
    assert set(counted) == set(BUDGET["lines"])
    assert counted["core"] + counted["wings"] == lines(files("src", ".py"))


@pytest.mark.parametrize("folder", ["README.md", "docs", "recipes", "src"])
def test_programs_that_are_named_exist_or_have_their_commit(folder: str) -> None:
    every = [ROOT / folder] if (ROOT / folder).is_file() else files(folder, ".md", ".py", ".cpp", ".h")
    for path in every:
        text = path.read_text(encoding="utf-8")
        gone = {n for n in re.findall(r"\bbench/\w+\.py", text) if not (ROOT / n).exists()}
        assert not gone or COMMIT in text, f"{path.relative_to(ROOT)}: {gone}"


if __name__ == "__main__":
    print(*(f"{name} = {count:_}" for name, count in counts().items()), sep="\n")
