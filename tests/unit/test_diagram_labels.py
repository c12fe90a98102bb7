"""The diagrams of the Chinese site: every label is in the table, and fits its box."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from html import unescape
from pathlib import Path

import pytest

pytest.importorskip("mermaidx", reason="the extra docs is not installed")

from mermaidx.font_metrics import get_font

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("diagrams", ROOT / "docs" / "_site" / "diagrams.py")
assert _spec is not None and _spec.loader is not None
diagrams = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(diagrams)

PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "```mermaid" in path.read_text(encoding="utf-8")]
WIDEST = 200
"""Pixels; the page breaks a wider line, for which the layout leaves room at spaces only, not in Chinese words."""


def sources(page: Path) -> list[str]:
    return re.findall(r"```mermaid\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_labels_are_translated_and_fit(page: Path) -> None:
    table = diagrams.labels("zh_CN")
    for source in sources(page):
        for line in diagrams.translated(source, table).splitlines():
            for label in [] if "subgraph" in line else re.findall(r'"([^"]*)"', line):
                wide = [part for part in label.split("<br/>") if width(part) > WIDEST]
                assert not [part for part in wide if diagrams.FILLER in diagrams.filled(part)], label


def width(line: str) -> float:
    return float(get_font("normal").measure(diagrams.filled(unescape(line)), 16)["width"])


def test_every_label_is_quoted() -> None:
    """Others would not be found, and stay English."""
    for page in PAGES:
        for source in sources(page):
            rest = re.sub(r'\|"[^"]*"\||"[^"]*"', '""', source)
            assert not re.search(r'\w[\[({]+[^\[({"\s]|\|', rest), page
            assert not re.search(r"subgraph \w+\s*$", source, flags=re.MULTILINE), page


def test_the_table_has_nothing_else() -> None:
    path = ROOT / "docs" / "locale" / "zh_CN" / "diagrams.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    used = {label for page in PAGES for source in sources(page) for label in re.findall(r'"([^"]*)"', source)}
    assert {*table["labels"], *table["unchanged"]} == used
    assert not [label for label in table["labels"].values() if not re.search("[\u3000-\uffef]", label)]
    assert not {*table["labels"]} & {*table["unchanged"]}


def test_a_label_that_is_missing_is_named() -> None:
    with pytest.raises(diagrams.MissingLabel, match="new words"):
        diagrams.translated('a["x"] --> b["new words"]', {"x": "x"})


def test_a_chinese_character_is_as_wide_as_its_size() -> None:
    assert width("注意力：权重") == pytest.approx(6 * 16)
    drawn = diagrams.draw('flowchart TB\n  a["注意力权重"]')
    assert "注意力权重" in drawn and diagrams.FILLER not in drawn
    assert float(re.findall(r'<foreignObject width="([\d.]+)"', drawn)[0]) == pytest.approx(5 * 16)
