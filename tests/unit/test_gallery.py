"""The gallery: every printed number beside ours, within its rounding, in a page that stands alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dragoman.interpret.walkthrough.gallery import gallery, write_gallery

ITEMS = {(i, j): item for i, chapter in enumerate(gallery()) for j, item in enumerate(chapter.items)}


@pytest.mark.parametrize("place", ITEMS, ids=lambda place: f"{place[0]}.{place[1]}")
def test_what_is_printed_is_what_we_compute(place: tuple[int, int]) -> None:
    item = ITEMS[place]
    assert item.title["en"] and item.title["zh"] and item.formula
    if item.printed is None:
        assert (item.difference is None and item.note is not None) or item.formula.startswith("−ln")
    else:
        assert item.difference is not None and item.difference <= item.rounding, (item.title, item.ours)


def test_the_two_examples_are_there() -> None:
    vectors, step = ([item.formula for item in chapter.items] for chapter in gallery())
    assert vectors[-1] == "softmax(Q Kᵀ / √3) V"
    (update,) = [item for item in gallery()[1].items if item.formula.startswith("new")]
    assert [round(x, 9) for x in update.ours[0].tolist()] == [0, -0.2056, 0.002056]
    assert len(step) >= 20
    assert gallery()[0].items[10].ours[0].tolist() == pytest.approx([1.9366, 6.6831, 1.5951], abs=5e-5)


def test_the_page_holds_all_of_it_and_asks_for_nothing(tmp_path: Path) -> None:
    page = write_gallery(tmp_path / "gallery.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:|#)', page) and "default-src 'none'" in page
    found = re.search(r'<script type="application/json" id="gallery">(.*?)</script>', page, flags=re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    assert [len(chapter["items"]) for chapter in data["chapters"]] == [12, len(ITEMS) - 12]
    assert {step["part"] for step in data["walk"]["steps"]} == {"forward", "backward", "update"}
    assert "%%" not in page
