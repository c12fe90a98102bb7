"""Formulas as MathML, which browsers draw without a script; `static/site.css` names their font.

Their words in other languages: `formulas` in docs/locale/<language>/diagrams.toml.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal

from docutils import nodes
from latex2mathml import converter
from sphinx.application import Sphinx

_SPACE = '<mspace width="0.1667em"/>'
_FUNCTION = r"<mi>(?:arg|cos|exp|ln|log|max|min|sin|tanh)</mi>"
_BEFORE = re.compile(rf"(</m(?:i|n|sub|sup|subsup|row)>)(?={_FUNCTION})")
_AFTER = re.compile(rf"({_FUNCTION})(?=<m(?:i|n|sub|sup|subsup|frac|row)\b)")
_WORDS = re.compile(r"(?<=\\text\{)[^{}]+(?=\})")
_BAR = re.compile(r"<mo([^>]*)>(?=&#x(?:0007C|02016);</mo>)")


def convert(formula: str, display: Literal["inline", "block"] = "inline") -> str:
    """Return a formula as MathML, with the spaces of TeX: beside the names of functions, none inside |x|."""
    text = converter.convert(formula, display=display)
    text = _AFTER.sub(rf"\1{_SPACE}", _BEFORE.sub(rf"\1{_SPACE}", text))
    return _BAR.sub(r'<mo\1 lspace="0" rspace="0">', text)


@cache
def words(language: str) -> dict[str, str]:
    path = Path(__file__).parents[1] / "locale" / language / "diagrams.toml"
    table: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8"))["formulas"] if path.is_file() else {}
    return table


def _inline(self: Any, node: nodes.Element) -> None:
    self.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.Element) -> None:
    table = words(self.config.language)
    formula = _WORDS.sub(lambda found: table.get(found[0], found[0]), node.astext())
    parts = re.split(r"\\q?quad\b", formula)  # on narrow screens, each is a line of its own
    whole = all(len(re.findall(r"\{|\\left\b", part)) == len(re.findall(r"\}|\\right\b", part)) for part in parts)
    shown = "".join(convert(part, display="block") for part in (parts if whole else [formula]))
    self.body.append(f'<div class="math-block">{shown}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.config.html_math_renderer = "mathml"  # type: ignore[attr-defined]
    return {"parallel_read_safe": True}
