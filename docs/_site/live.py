"""Live pages: those that `dragoman playground`, `explain` and the like write, as part of the site.

In Markdown, `<!-- live: NAME {"key": value} -->` stands before a paragraph, or before a picture and a paragraph.  On
GitHub the comment is invisible.  On the site, a frame with the page stands above the paragraph, which begins with its
title in bold, and a link opens the page alone; the object is the state of a playground, the part of its address after
`#`.  Where no script runs, and on paper, the picture and the link remain.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from docutils import nodes
from docutils.transforms import Transform
from sphinx.application import Sphinx

NAMES = ("playground", "playground-demo", "walkthrough", "worked", "gallery", "explain", "atlas", "report")

_LIVE = re.compile(r"<!-- live: ([\w-]+)(?: (\{.*\}))? -->\s*")
_HEAD = '<html lang="en" data-language="en">'


def write(out: Path, demo: Path) -> None:
    """Write the pages to out/en/live and out/zh/live; `dragoman demo --out DEMO` runs first if it has not finished."""
    from dragoman.interpret import commands
    from dragoman.pages.page import write_page

    if not (demo / "report.html").exists():
        commands.demo(out=demo)
    run = demo / "run"
    with TemporaryDirectory() as folder:
        page = {name: Path(folder, f"{name}.html") for name in NAMES}
        commands.playground(None, page["playground"])
        commands.playground(run, page["playground-demo"])
        commands.walkthrough(heads=1, learning_rate=0.01, out=page["walkthrough"])
        commands.walkthrough(worked=True, heads=1, learning_rate=0.01, out=page["worked"])
        commands.gallery(page["gallery"])
        commands.explain(run, "twenty-four", out=page["explain"], index=True)
        for path in (files := [Path(folder, f"test.{side}") for side in ("en", "de")]):
            lines = (demo / "corpus" / path.name).read_text(encoding="utf-8").splitlines(keepends=True)
            path.write_text("".join(lines[:200]), encoding="utf-8")
        commands.atlas(run, *files, alignment=commands.SPELLED_NUMBERS, out=page["atlas"], cost=True)
        page["report"] = demo / "report.html"
        for name, path in page.items():
            text = path.read_text(encoding="utf-8")
            for code, tag in (("en", "en"), ("zh", "zh-Hans")):
                head = f'<html lang="{tag}" data-language="{code}" data-opens-in="{code}">'
                write_page(out / code / "live" / f"{name}.html", text.replace(_HEAD, head, 1))


class LivePages(Transform):
    default_priority = 860  # after the translation of the paragraph

    def apply(self, **_: object) -> None:
        environment = self.document.settings.env
        alone = {"en": "Open the page alone", "zh_CN": "单独打开此页"}[environment.config.language]
        folder = "../" * environment.docname.count("/") + "live"
        for comment in list(self.document.findall(nodes.raw)):
            if not (found := _LIVE.fullmatch(comment.astext())):
                continue
            parent, at = comment.parent, comment.parent.index(comment)
            end = at + (3 if isinstance(parent[at + 1][0], nodes.image) else 2)
            *picture, caption = parent[at + 1 : end]
            title = next(caption.findall(nodes.strong)).astext().rstrip(".。")
            address = f"{folder}/{found[1]}.html" + (f"#{quote(found[2])}" if found[2] else "")
            kind = ' class="fits"' if '"show"' in (found[2] or "") else ""
            frame = f'<iframe{kind} loading="lazy" title="{escape(title)}" src="{address}"></iframe>'
            link = f' <a class="alone" href="{address}" target="_blank">{alone}</a>'
            caption += nodes.raw("", link, format="html")
            parts = [nodes.raw("", frame, format="html"), *picture, caption]
            parent[at:end] = [nodes.container("", *parts, classes=["live"])]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(LivePages)
    return {"parallel_read_safe": True}
