"""Anchors that a page has as HTML, `<a id="name"></a>`, become targets of links."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.transforms import Transform
from sphinx.application import Sphinx

_ANCHOR = re.compile(r'<a id="([^"]+)">')


class HTMLAnchors(Transform):
    default_priority = 870  # before links are resolved

    def apply(self, **_: Any) -> None:
        for raw in list(self.document.findall(nodes.raw)):
            if raw.astext() == "</a>":
                raw.parent.remove(raw)
            elif found := _ANCHOR.fullmatch(raw.astext()):
                if other := self.document.ids.pop(found[1], None):  # a section has a second id
                    other["ids"].remove(found[1])
                target = nodes.target("", "", ids=[found[1]], names=[found[1]])
                self.document.note_explicit_target(target, target)
                raw.replace_self(target)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(HTMLAnchors)
    return {"parallel_read_safe": True}
