"""What Sphinx writes into every page, improved.

A description for search engines; signatures of several lines without a `<dl>` that has no terms, which is not
a valid list.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_DESCRIPTION = 160
"""Characters; search engines show no more."""
_PARAMETERS = re.compile(r'(<span class="sig-paren">[(\[]</span>\s*)<dl>\n(<dd>.*?)</dl>', flags=re.DOTALL)


def _complete(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None) -> None:
    body = (context.get("body") or "").replace("</strong> -- ", "</strong> – ")
    context["body"] = _PARAMETERS.sub(_lines, body)
    text = next((found.astext() for found in tree.findall(nodes.paragraph)), "") if tree else ""
    text = " ".join(text.split()) or app.config.project
    short = text if len(text) <= _DESCRIPTION else text[: _DESCRIPTION - 1] + "…"
    context["metatags"] = context.get("metatags", "") + f'<meta name="description" content="{escape(short)}">'


def _lines(found: re.Match[str]) -> str:
    lines = found[2].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
    return found[1] + lines.replace("\n", "")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", _complete)
    return {"parallel_read_safe": True}
