"""Search: numbers are found as they are written, and Chinese text by pairs of adjacent characters.

Sphinx cuts 0.2056 at its point, and drops the digits.  It cuts Chinese text into words only with the package jieba,
and does not cut the query, so that a phrase of two words is found in titles alone.  Pairs need no dictionary, and every
text is found by each part of it.  The index is stored compressed, in less than half its size.
"""

from __future__ import annotations

import gzip
import re
from base64 import b64encode
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

_NUMBER = r"\d+(?:\.\d+)+"
_WORD = re.compile(rf"{_NUMBER}|\w+")
_RUN = re.compile(rf"([\u4e00-\u9fff]+)|{_NUMBER}|[^\W\u4e00-\u9fff]+")
"""Chinese characters, a number, or a word of other letters and digits."""


class SearchNumbers(SearchEnglish):
    js_splitter_code = rf"""
function splitQuery(query) {{
  return query.match(/{_NUMBER}|[\p{{Letter}}\p{{Number}}_]+/gu) ?? [];
}}
"""

    def split(self, input: str) -> list[str]:
        return _WORD.findall(input)


class SearchBigrams(SearchEnglish):
    lang = "zh"  # English words among the Chinese ones are stemmed as in English
    js_splitter_code = rf"""
function splitQuery(query) {{
  const runs = query.match(/[\u4e00-\u9fff]+|{_NUMBER}|(?:(?![\u4e00-\u9fff])[\p{{Letter}}\p{{Number}}_])+/gu) ?? [];
  return runs.flatMap((run) =>
    /^[\u4e00-\u9fff]{{3}}/.test(run) ? Array.from(run.slice(1), (next, i) => run[i] + next) : [run]);
}}
"""

    def split(self, input: str) -> list[str]:
        terms: list[str] = []
        for run in _RUN.finditer(input):
            terms += [run[0][i : i + 2] for i in range(len(run[0]) - 1)] if run[1] else [run[0]]
        return terms


def _compress(app: Sphinx, error: Exception | None) -> None:
    path = Path(app.outdir, "searchindex.js")
    if error is None and path.exists():
        index = path.read_text(encoding="utf-8").removeprefix("Search.setIndex(").removesuffix(")")
        data = b64encode(gzip.compress(index.encode(), mtime=0)).decode()
        # As a data: address, because a page that is opened from a folder cannot fetch files.
        unpacked = f'(await fetch("data:;base64,{data}")).body.pipeThrough(new DecompressionStream("gzip"))'
        script = f"(async () => Search.setIndex(await new Response({unpacked}).json()))();\n"
        path.write_text(script, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_search_language(SearchNumbers)
    app.add_search_language(SearchBigrams)
    app.connect("build-finished", _compress)
    return {"parallel_read_safe": True}
