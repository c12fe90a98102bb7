"""The gallery against the package, which computes its numbers, and against a twin in NumPy.

The twin has the same printed numbers, the same computed ones and the same verdicts.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import gallery_twin
import numpy as np
import pytest
from gallery_twin import CHAPTERS, Row, table
from worked_numbers import computed, names

from dragoman.interpret.walkthrough.gallery import WorkedExample, gallery
from dragoman.interpret.walkthrough.steps import read_data

PAGE = Path(__file__).parents[2] / "docs" / "learn" / "numbers.md"
TWIN = {(chapter, row.quantity): row for chapter, rows in CHAPTERS.items() for row in rows()}


@cache
def ours() -> dict[tuple[str, str], WorkedExample]:
    return {(chapter.title["en"], item.title["en"]): item for chapter in gallery() for item in chapter.examples}


NUMBERS = read_data("gallery_numbers.toml")


def test_every_recorded_matrix_is_shown_and_every_shown_one_is_recorded() -> None:
    assert [*NUMBERS] == names()


@pytest.mark.parametrize("name", NUMBERS)
def test_the_package_computes_the_recorded_numbers(name: str) -> None:
    np.testing.assert_allclose(computed()[name].numpy(), NUMBERS[name], rtol=1e-12, atol=1e-15)


def test_both_have_the_same_quantities_in_the_same_order() -> None:
    assert [*TWIN] == [*ours()]


@pytest.mark.parametrize("name", TWIN, ids=lambda name: name[1])
def test_a_quantity_is_recomputed(name: tuple[str, str]) -> None:
    row: Row = TWIN[name]
    item = ours()[name]
    printed = [[np.nan if x is None else x for x in line] for line in item.printed or []]
    np.testing.assert_array_equal(row.numbers(), printed)
    if item.computed is not None:
        # The norms of the package have an epsilon of 1e-12 here.
        np.testing.assert_allclose(row.values(), item.computed, rtol=1e-9, atol=1e-9)
    else:
        assert row.value is None
    assert (row.verdicts() or None) == item.verdicts
    assert bool(row.reason) == any("explained" in line for line in row.verdicts())


def test_the_twin_shares_no_code_with_the_package() -> None:
    nodes = [*ast.walk(ast.parse(Path(gallery_twin.__file__).read_text(encoding="utf-8")))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert names == {"__future__", "dataclasses", "itertools", "math", "numpy", "numpy.typing", "typing"}


def test_the_page_has_the_table_and_its_counts() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.endswith(table()), "python tests/parity/gallery_twin.py prints the table"
    found = Counter(x for row in TWIN.values() for line in row.verdicts() for x in line)
    counts = f"{found['equal']} agree, {found['explained']} differ for a stated reason, {found['given']} are given"
    assert counts in text
    walkthrough = (PAGE.parents[1] / "inside" / "walkthrough.md").read_text(encoding="utf-8")
    assert all(f"({found[kind]} numbers" in walkthrough for kind in ("equal", "given"))
    assert f"({found['explained']} numbers" in walkthrough
