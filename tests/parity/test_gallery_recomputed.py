"""The gallery: its numbers computed by the package and by a twin in NumPy, its verdicts, its page.

The twin has the same printed numbers, the same computed ones and the same verdicts.
"""

from __future__ import annotations

import ast
import json
import math
import re
import tomllib
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import gallery_twin
import numpy as np
import pytest
from gallery_twin import CHAPTERS, Row, table
from worked_numbers import computed, names

from dragoman.interpret.walkthrough.gallery import WorkedExample, gallery, write_gallery
from dragoman.interpret.walkthrough.steps import read_data

PAGE = Path(__file__).parents[2] / "docs" / "learn" / "numbers.md"
NUMBERS = read_data("gallery_numbers.toml")
TWIN = {(chapter, row.quantity): row for chapter, rows in CHAPTERS.items() for row in rows()}


@cache
def ours() -> dict[tuple[str, str], WorkedExample]:
    return {(chapter.title["en"], item.title["en"]): item for chapter in gallery() for item in chapter.examples}


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
    assert item.title["en"] and item.title["zh"] and item.formula
    assert item.printed is not None or (item.computed is not None and item.note is not None)
    if row.reason:
        assert item.note is not None and item.note["en"] and item.note["zh"]


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


def test_a_number_agrees_within_its_last_decimal() -> None:
    def verdict(printed: str, computed: float, given: bool = False) -> object:
        item = WorkedExample(
            {}, "x", [[computed]], tomllib.loads(f"x = [[{printed}]]", parse_float=Decimal)["x"], None, given
        )
        return item.verdicts, item.difference

    assert verdict("0.340", 0.3404) == ([["equal"]], pytest.approx(4e-4))
    assert verdict("0.340", 0.3406) == ([["explained"]], None)
    assert verdict("0.34", 0.3406) == ([["equal"]], pytest.approx(6e-4))
    assert verdict("0.34", 0.5, given=True) == ([["given"]], None)
    assert verdict("1", 1.0004)[0] == [["equal"]] and verdict("1", 1.0006)[0] == [["explained"]]
    assert verdict("-inf", -math.inf) == ([["equal"]], 0)
    assert verdict("nan", 1.0) == ([[None]], None)


def test_numbers_keep_the_notation_of_their_source() -> None:
    rows = tomllib.loads("x = [[0, 0.01, -0.2056, 0.340, -inf, nan, 10000]]", parse_float=Decimal)["x"]
    item = WorkedExample({}, "x", printed=rows, given=True)
    assert item.as_printed == [["0", "0.01", "−0.2056", "0.340", "−∞", "…", "10000"]]


def test_the_chapters_and_their_counts() -> None:
    counts = [tuple(chapter.counts.values()) for chapter in gallery()]
    assert counts == [(14, 0, 10), (54, 2, 48), (7, 1, 0), (2, 1, 0), (154, 8, 122)]
    explained = [item.formula for item in ours().values() if "explained" in str(item.verdicts)]
    assert explained == [
        "softmax(q₁ Kᵀ)", "1 + 2 L", "E", "8 d² / (8 d² + 4 n d²)", "μ, σ²", "norm(Y + FFN(Y))", "q₁ Kᵀ / √4",
        "softmax(logits)",
    ]  # fmt: skip
    (update,) = [item for item in gallery()[-1].examples if item.formula.startswith("new")]
    assert update.computed is not None
    assert [round(x, 9) for x in update.computed[0]] == [0, 0.01, -0.2056, 0.002056]
    assert update.verdicts == [["given", "given", "equal", "equal"]]


def test_numbers_that_rest_on_a_mistake_are_marked() -> None:
    marked = [item for item in ours().values() if item.mistake]
    assert [item.title["en"] for item in marked] == [
        "Gradient: scores", "Gradient: products", "Gradient: keys", "Gradient: to the encoder through the keys",
        "Gradient: to the encoder, sum", "Update of W_V[0, 0]: old, rate, gradient, new",
    ]  # fmt: skip
    assert all(item.note is not None and item.note["en"] and item.note["zh"] for item in marked)


def test_the_page_holds_all_of_it_and_asks_for_nothing(tmp_path: Path) -> None:
    page = write_gallery(tmp_path / "gallery.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:|#)', page) and "default-src 'none'" in page
    found = re.search(r'<script type="application/json" id="gallery">(.*?)</script>', page, flags=re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    assert [len(chapter["examples"]) for chapter in data["chapters"]] == [
        len(chapter.examples) for chapter in gallery()
    ]
    (masked,) = [example for example in data["chapters"][-1]["examples"] if example["formula"] == "S + M"]
    assert masked["printed"][0] == masked["computed"][0] == [6.64, "−∞"], "JSON has no infinity"
    assert {step["part"] for step in data["walkthrough"]["steps"]} == {"forward", "backward", "update"}
    assert not re.search("{[{%]", page.split('<script type="application/json"')[0])
