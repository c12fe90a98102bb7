"""The Chinese pages say the same as the English ones: same code, links, tags, formulas and numbers; nothing is missing.

The headings, tables and code blocks of both languages are those of the same file; only text is translated.
"""

from __future__ import annotations

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

pofile = pytest.importorskip("babel.messages.pofile", reason="needs Babel, of the extra docs")
ROOT = Path(__file__).resolve().parents[2]
LOCALE = ROOT / "docs" / "locale" / "zh_CN" / "LC_MESSAGES"
PAGES = sorted(path.relative_to(LOCALE).as_posix() for path in LOCALE.rglob("*.po"))
_PARTS = {
    "code": re.compile(r"```[^`]+```|`[^`]+`"),
    "link": re.compile(r"\]\([^)]*\)"),
    "tag": re.compile(r"</?[a-z][^>]*>"),
    "formula": re.compile(r"\$\$[^$]+\$\$|\$[^$]+\$"),
    "number": re.compile(r"(?<![A-Za-z\d])\d(?:[\d,.]*\d)?(?: million\b| billion\b| 万| 亿|)"),
}
_EMBEDDED = re.compile(r"(?<=data:)image/[^)]*|^```mermaid\n.*?^```|(?<=\\text\{)[^}]*", flags=re.M | re.S)
"""Pictures, diagrams and words of formulas in a notebook, which have tables of their own."""
_UNITS = {"million": 1e6, "billion": 1e9, "万": 1e4, "亿": 1e8}
_SHARED = re.compile(r"(\d[\d.,]*)(?= (?:to|and|or) \d[\d.,]* million)")


def parts(text: str) -> tuple[dict[str, Counter[str]], str]:
    """Return the parts of a text (each found after removing those before), and the rest of it."""
    found = {}
    text = _SHARED.sub(r"\1 million", text)  # 2 to 3 million
    for name, pattern in _PARTS.items():
        parts = pattern.findall(text)
        found[name] = Counter(map(value, parts) if name == "number" else parts)
        text = pattern.sub(" ", text)
    return found, text


def value(number: str) -> str:
    """Return a number without units such as million and 万."""
    digits, _, unit = number.partition(" ")
    return f"{float(digits.replace(',', '')) * _UNITS[unit]:.6g}" if unit else digits


def messages(page: str) -> list[tuple[str, str, bool]]:
    """Return (English, Chinese, whether the English text has changed since) of each message of a page."""
    with (LOCALE / page).open("rb") as file:
        catalog = pofile.read_po(file, locale="zh_CN")
    return [(message.id, message.string, message.fuzzy) for message in catalog if message.id]


@pytest.mark.parametrize("page", PAGES)
def test_the_chinese_page_is_complete_and_equal(page: str) -> None:
    problems = []
    for english, chinese, changed in messages(page):
        there, words = parts(english)
        if "\\" in english and "$" not in english and "`" not in english:  # a displayed formula
            if chinese not in ("", english):
                problems.append(f"the formula differs: {chinese}")
        elif not chinese or changed:
            if re.search(r"[A-Za-z]{2}", words):
                problems.append(f"not translated: {english}")
        elif there != (here := parts(chinese)[0]):
            different = {name: (there[name], here[name]) for name in there if there[name] != here[name]}
            problems.append(f"{different} in: {chinese}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/learn/")])
def test_a_notebook_has_the_code_of_the_english_one_and_every_translation(page: str) -> None:
    notebook = runpy.run_path(str(ROOT / "scripts" / "notebooks"))["notebook"]
    path, shown = (ROOT / page).with_suffix(".md"), ""
    for english, chinese in zip(notebook(path)["cells"], notebook(path, "zh_CN")["cells"], strict=True):
        here, there = (_EMBEDDED.sub("", cell["source"]) for cell in (chinese, english))
        assert here == there if english["cell_type"] == "code" else parts(here)[0] == parts(there)[0]
        assert {**chinese, "source": ""} == {**english, "source": ""}  # the outputs
        assert not re.search(r"\\text\{ ?(?!model\b)\w*[a-z]", chinese["source"])
        shown += here.replace(".ipynb", ".md").replace(r"\|", "|") + "\n"
    texts = {_EMBEDDED.sub("", text[1]) for text in messages(page) if not text[0].startswith((".. image::", "!["))}
    assert [text for text in texts if text.replace(r"\|", "|") not in shown] == [] and "**Answer" not in shown


def test_differences_are_found() -> None:
    found = parts('see <a id="key"></a>`a`, [b](c.md#d) and $x = 1$: 2,000 in v3')[0].values()
    assert [sorted(x) for x in found] == [["`a`"], ["](c.md#d)"], ["</a>", '<a id="key">'], ["$x = 1$"], ["2,000"]]
    assert parts("1.2 to 3 million")[0] == parts("120 万到 300 万")[0] != parts("120 到 300 万")[0]
    assert parts("2,000 pairs")[0] == parts("2,000 个句对")[0] != parts("2,001 个句对")[0]
