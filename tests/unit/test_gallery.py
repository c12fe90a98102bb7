"""The gallery: every printed number agrees, is given, or differs for a stated reason; the page is self-contained."""

from __future__ import annotations

import json
import math
import re
import tomllib
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dragoman.interpret.walkthrough.gallery import WorkedExample, gallery, write_gallery
from dragoman.interpret.walkthrough.steps import read_data

SOURCES = [chapter for name in ("gallery.toml", "gallery_step.toml") for chapter in read_data(name)["chapters"]]
INDICES = [(i, j) for i, chapter in enumerate(SOURCES) for j in range(len(chapter["examples"]))]

chapters = cache(gallery)


def items() -> list[WorkedExample]:
    return [item for chapter in chapters() for item in chapter.examples]


def verdicts(item: WorkedExample) -> set[str | None]:
    return {verdict for row in item.verdicts or [] for verdict in row}


@pytest.mark.parametrize("index", INDICES, ids=lambda index: f"{index[0]}.{index[1]}")
def test_every_printed_number_has_a_verdict_and_every_difference_a_reason(index: tuple[int, int]) -> None:
    item = chapters()[index[0]].examples[index[1]]
    assert item.title["en"] and item.title["zh"] and item.formula
    if item.printed is None:
        assert item.computed is not None and item.note is not None
    else:
        shown = [[x is not None for x in row] for row in item.printed]
        assert (
            item.verdicts is not None and [[verdict is not None for verdict in row] for row in item.verdicts] == shown
        )
    if "explained" in verdicts(item):
        assert item.note is not None and item.note["en"] and item.note["zh"]


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
    counts = [tuple(chapter.counts.values()) for chapter in chapters()]
    assert counts == [(14, 0, 10), (54, 2, 48), (7, 1, 0), (2, 1, 0), (154, 8, 122)]
    explained = [item.formula for item in items() if "explained" in verdicts(item)]
    assert explained == [
        "softmax(q₁ Kᵀ)", "1 + 2 L", "E", "8 d² / (8 d² + 4 n d²)", "μ, σ²", "norm(Y + FFN(Y))", "q₁ Kᵀ / √4",
        "softmax(logits)",
    ]  # fmt: skip
    (update,) = [item for item in chapters()[-1].examples if item.formula.startswith("new")]
    assert update.computed is not None
    assert [round(x, 9) for x in update.computed[0]] == [0, 0.01, -0.2056, 0.002056]
    assert update.verdicts == [["given", "given", "equal", "equal"]]


def test_numbers_that_rest_on_a_mistake_are_marked() -> None:
    marked = [item for item in items() if item.mistake]
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
        len(chapter.examples) for chapter in chapters()
    ]
    (masked,) = [example for example in data["chapters"][-1]["examples"] if example["formula"] == "S + M"]
    assert masked["printed"][0] == masked["computed"][0] == [6.64, "−∞"], "JSON has no infinity"
    assert {step["part"] for step in data["walkthrough"]["steps"]} == {"forward", "backward", "update"}
    assert not re.search("{[{%]", page.split('<script type="application/json"')[0])
