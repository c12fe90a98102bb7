"""The pictures of the lessons are what `docs/_site/lesson_figures.py` draws."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("lesson_figures", ROOT / "docs" / "_site" / "lesson_figures.py")
assert _spec is not None and _spec.loader is not None
lesson_figures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lesson_figures)


@pytest.mark.parametrize("name", sorted(lesson_figures.FIGURES))
def test_picture_is_up_to_date(name: str) -> None:
    drawn = lesson_figures.FIGURES[name]()
    stored = (ROOT / "docs" / "learn" / name).read_text(encoding="utf-8")
    assert drawn == stored, "run python docs/_site/lesson_figures.py"


@pytest.mark.parametrize("name", sorted(lesson_figures.FIGURES))
def test_chinese_picture_is_up_to_date_and_has_no_english_title(name: str) -> None:
    drawn = lesson_figures.chinese(lesson_figures.FIGURES[name]())
    stored = (ROOT / "docs" / "learn" / name).with_suffix(".zh_CN.svg").read_text(encoding="utf-8")
    assert drawn == stored, "run python docs/_site/lesson_figures.py"
    examples = {"a", "dog", "runs", "ein", "Hund", "läuft", "&lt;pad&gt;", "&lt;s&gt;", "relu", "gelu"}
    words = set(re.findall(r">([^<>]*[a-zA-Z][^<>]*)</text>", drawn))
    assert words <= examples and re.search(r'aria-label="[^a-zA-Z"]+"', drawn)


def test_cells_merge_within_a_column_and_show_the_sign() -> None:
    drawn = lesson_figures.cells(torch.tensor([[1.0, 0.0], [1.0, -0.4]]), 10, 20, 4, 3)
    assert drawn.split("\n") == [
        '<path fill="var(--s1)" fill-opacity="0.4" d="M14 23h4v3h-4z"/>',
        '<path fill="var(--s0)" fill-opacity="1" d="M10 20h4v6h-4z"/>',
    ]
