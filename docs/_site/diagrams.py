"""Fenced `mermaid` blocks as SVG pictures, drawn when the site is built: pages need no script.

Labels in other languages: docs/locale/<language>/diagrams.toml.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from unicodedata import east_asian_width

import mermaidx
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

LOCALE = Path(__file__).parents[1] / "locale"
FILLER = "‹"
"""Follows each Chinese character during the layout: the layout's font has no Chinese and counts 0.6 em for a character
that it lacks; with this sign's 0.4 em that makes the 1 em of a Chinese character."""
SMALLEST = 11 / 16
"""Of the natural size: letters are then 11 instead of 16 pixels high, and a wider picture scrolls."""

_FONT = re.compile(r"font-family:[^;}]*")
_LABEL = re.compile(r'"([^"]*)"')
_WIDTH = re.compile(r"max-width: ([\d.]+)px;")
_TITLE = re.compile(r'(<rect style="" x="([-\d.]+)" [^>]*/><g class="cluster-label" transform="translate\()[-\d.]+')


class MissingLabel(ValueError):
    """A label that the table of a language lacks."""


@cache
def labels(language: str) -> dict[str, str] | None:
    """Return the table of a language: label -> translation; None for English."""
    path = LOCALE / language / "diagrams.toml"
    if not path.is_file():
        return None
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    words: dict[str, str] = table["labels"]
    return words | {label: label for label in table["unchanged"]}


def translated(source: str, table: dict[str, str]) -> str:
    """Return the source of a diagram with its labels translated."""
    missing = sorted({label for label in _LABEL.findall(source) if label not in table})
    if missing:
        raise MissingLabel(f"add to diagrams.toml: {', '.join(missing)}")
    return _LABEL.sub(lambda found: f'"{table[found[1]]}"', source)


def filled(text: str) -> str:
    """Return the text as wide for the layout as it is on the page."""
    return "".join(char + FILLER if east_asian_width(char) in "WF" else char for char in text)


def draw(source: str) -> str:
    drawn = mermaidx.render(filled(source)).svg()
    picture = (drawn if isinstance(drawn, str) else drawn.decode()).replace(FILLER, "")
    picture = _FONT.sub("font-family:inherit", picture)
    picture = _TITLE.sub(lambda found: f"{found[1]}{float(found[2]) + 8:g}", picture)  # beside the arrow, not on it
    return _WIDTH.sub(lambda found: f"{found[0]} min-width: {SMALLEST * float(found[1]):.0f}px;", picture, count=1)


class Mermaid(Directive):
    has_content = True

    def run(self) -> list[nodes.Node]:
        environment = self.state.document.settings.env
        source, table = "\n".join(self.content), labels(environment.config.language)
        if table is not None:
            environment.note_dependency(str(LOCALE / environment.config.language / "diagrams.toml"))
            try:
                source = translated(source, table)
            except MissingLabel as error:
                raise self.error(str(error)) from error
        return [nodes.raw("", f'<div class="diagram">{draw(source)}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True}
