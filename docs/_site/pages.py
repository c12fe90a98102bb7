"""What Sphinx writes into every page, improved.

A description for search engines; signatures of several lines without a `<dl>` that has no terms, which is not
a valid list; lines that break where a reader would break them; emphasis of Chinese pages by what is emphasized; the
size of pictures, so that the text below does not move when they appear; the notebook of a lesson.
"""

from __future__ import annotations

import re
import struct
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_DESCRIPTION = 160
"""Characters; search engines show no more."""
_PARAMETERS = re.compile(r'(<span class="sig-paren">[(\[]</span>\s*)<dl>\n(<dd>.*?)</dl>', flags=re.DOTALL)
_FORMULA = re.compile(r"(<math\b(?:(?!</math>).)*</math>)([,.;:!?)，。；：、？！）」”]+)", flags=re.DOTALL)
_LONG_NAME = re.compile(r'(<code class="[^"]*"><span class="pre">)([\w./-]{25,})(?=</span>)')
_DOT = re.compile(r'([、，：])(?=<code class="[^"]*"><span class="pre">\.)')
"""Before a name such as .tsv; by itself, no line begins with a full stop."""
_CELL = re.compile(r"<td\b.*?</td>", flags=re.DOTALL)
_QUANTITY = re.compile(r"(<p>[-−+±]?\d[\d,.]*) (?=[^\s<]{1,3}</p>)")
_PICTURE = re.compile(r'(<img [^>]*src="[^"]*_images/([\w.-]+\.(?:svg|png))")')
_EMPHASIS = re.compile(r"<em>(?=[^<\u2e80-\uffef]*</em>)")
"""Of words without Chinese characters: italic on Chinese pages too."""


def _complete(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None) -> None:
    body = (context.get("body") or "").replace("</strong> -- ", "</strong> – ")
    body = _FORMULA.sub(r'<span class="formula">\1\2</span>', body)
    body = _EMPHASIS.sub('<em class="latin">', body)
    body = _LONG_NAME.sub(lambda found: found[1] + re.sub(r"([./_])(?=\w)", r"\1<wbr>", found[2]), body)
    body = _DOT.sub(r"\1<wbr>", body)
    if (language := app.config.language) == "zh_CN":
        body = body.replace("<summary>Answer ", "<summary>答案 ")  # of a lesson; HTML of a page is not translated
    body = _CELL.sub(lambda found: _QUANTITY.sub("\\1\u00a0", found[0]), body)  # a number and its unit
    if page.startswith("docs/learn/") and "highlight-python" in body:
        folder, shown = {"en": ("", "Download as a notebook"), "zh_CN": ("zh_CN/", "下载为 Jupyter notebook")}[language]
        link = f'<p><a href="../../../notebooks/{folder}{page.rpartition("/")[2]}.ipynb" download>{shown}</a></p>'
        body = body.replace("</h1>", f"</h1>{link}", 1)
    pictures = {name: Path(app.srcdir) / path for path, name in app.builder.images.items()}
    body = _PICTURE.sub(lambda found: found[1] + _size(pictures[found[2]]), body)
    context["body"] = _PARAMETERS.sub(_lines, body)
    text = next((found.astext() for found in tree.findall(nodes.paragraph)), "") if tree else ""
    text = " ".join(text.split()) or app.config.project
    short = text if len(text) <= _DESCRIPTION else text[: _DESCRIPTION - 1] + "…"
    context["metatags"] = context.get("metatags", "") + f'<meta name="description" content="{escape(short)}">'


def _lines(found: re.Match[str]) -> str:
    lines = found[2].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
    return found[1] + lines.replace("\n", "")


def _size(picture: Path) -> str:
    data, svg = picture.read_bytes(), picture.suffix == ".svg"
    size = re.findall(rb'<svg [^>]*viewBox="0 0 (\d+) (\d+)"', data)[0] if svg else struct.unpack(">II", data[16:24])
    return ' width="{}" height="{}"'.format(*map(int, size))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", _complete)
    return {"parallel_read_safe": True}
