"""The gallery: every printed number agrees with the computed one within its rounding; the page is self-contained."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dragoman.interpret.walkthrough.gallery import gallery, write_gallery

ITEMS = {(i, j): item for i, chapter in enumerate(gallery()) for j, item in enumerate(chapter.examples)}


@pytest.mark.parametrize("index", ITEMS, ids=lambda index: f"{index[0]}.{index[1]}")
def test_printed_numbers_are_those_computed(index: tuple[int, int]) -> None:
    item = ITEMS[index]
    assert item.title["en"] and item.title["zh"] and item.formula
    if item.printed is None:
        assert (item.difference is None and item.note is not None) or item.formula.startswith("−ln")
    else:
        assert item.difference is not None and item.difference <= item.rounding, (item.title, item.computed)


def test_the_two_examples_are_there() -> None:
    vectors, step = ([item.formula for item in chapter.examples] for chapter in gallery())
    assert vectors[-1] == "softmax(Q Kᵀ / √3) V"
    (update,) = [item for item in gallery()[1].examples if item.formula.startswith("new")]
    assert [round(x, 9) for x in update.computed[0]] == [0, -0.2056, 0.002056]
    assert len(step) >= 20
    assert gallery()[0].examples[10].computed[0] == pytest.approx([1.9366, 6.6831, 1.5951], abs=5e-5)


def test_the_page_holds_all_of_it_and_asks_for_nothing(tmp_path: Path) -> None:
    page = write_gallery(tmp_path / "gallery.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:|#)', page) and "default-src 'none'" in page
    found = re.search(r'<script type="application/json" id="gallery">(.*?)</script>', page, flags=re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    assert [len(chapter["examples"]) for chapter in data["chapters"]] == [12, len(ITEMS) - 12]
    assert {step["part"] for step in data["walkthrough"]["steps"]} == {"forward", "backward", "update"}
    assert not re.search("{[{%]", page.split('<script type="application/json"')[0])
