"""Formulas as MathML, which browsers draw without a script; `static/site.css` names their font."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def _inline(self: Any, node: nodes.Element) -> None:
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.Element) -> None:
    self.body.append(f'<div class="math-block">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.config.html_math_renderer = "mathml"  # type: ignore[attr-defined]
    return {"parallel_read_safe": True}
