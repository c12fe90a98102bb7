"""Fenced `mermaid` blocks as SVG pictures, drawn when the site is built: pages need no script."""

from __future__ import annotations

import re

import mermaidx
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

_FONT = re.compile(r"font-family:[^;}]*")


class Mermaid(Directive):
    has_content = True

    def run(self) -> list[nodes.Node]:
        source = "\n".join(self.content)
        drawn = mermaidx.render(source).svg()
        picture = _FONT.sub("font-family:inherit", drawn if isinstance(drawn, str) else drawn.decode())
        return [nodes.raw("", f'<div class="diagram">{picture}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True}
