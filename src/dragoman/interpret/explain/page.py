"""The page of an explanation: one file that draws itself, in English and Chinese, and needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.pages.page import render, write_page

if TYPE_CHECKING:
    from dragoman.interpret.explain.explain import Explanation

__all__ = ["explanation_page", "write_explanation"]


def explanation_page(explanation: Explanation) -> str:
    """The page as HTML."""
    return render("explain.html", title="Dragoman: a look inside", data=explanation.to_json())


def write_explanation(path: str | Path, explanation: Explanation) -> Path:
    """Write the page to `path`, whole or not at all, and return `path`.  Raises DragomanError where it cannot be."""
    return write_page(Path(path), explanation_page(explanation))
