"""The page of an explanation: one file that draws itself, in English and Chinese, and needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.pages.page import web, whole_page, write_page

if TYPE_CHECKING:
    from dragoman.interpret.explain.explain import Explanation

__all__ = ["explanation_page", "write_explanation"]

STYLES = ("page.css", "language.css", "explain.css", "walkthrough.css")
SCRIPTS = (
    "page.js", "language.js", "packing.js", "explain.js", "explain_maps.js", "explain_attention.js",
    "explain_image.js", "explain_layers.js", "explain_beam.js", "walkthrough.js",
)  # fmt: skip


def explanation_page(explanation: Explanation) -> str:
    """The page as HTML."""
    body, data = web("explain.html"), explanation.to_json()
    return whole_page("Dragoman: a look inside", body, "explanation", data, STYLES, SCRIPTS)


def write_explanation(path: str | Path, explanation: Explanation) -> Path:
    """Write the page to `path`, whole or not at all, and return `path`.  Raises DragomanError where it cannot be."""
    return write_page(Path(path), explanation_page(explanation))
