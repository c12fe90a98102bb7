"""The documentation site builds without a warning: every link, picture and formula, in both languages."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from pathlib import Path

import pytest

import dragoman

ROOT = Path(__file__).parents[2]
NAMES = {"README.html", "docs/index.html", "docs/architectures/transformer.html", "docs/architectures/ssru.html"}
"""Pages whose title is a name, which is not translated."""


@pytest.mark.parametrize(("folder", "language"), [("en", "en"), ("zh", "zh-CN")])
def test_every_page_is_in_the_site(site: Path, folder: str, language: str) -> None:
    pages = sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "locale" / "README.md"})
    assert len(pages) > 40
    for page in pages:
        built = site / folder / page.relative_to(ROOT).with_suffix(".html")
        assert f'lang="{language}"' in built.read_text(encoding="utf-8")[:500]
    assert f'href="{folder}/docs/index.html"' in (site / "index.html").read_text(encoding="utf-8")


def test_translated_pages_are_in_chinese(site: Path) -> None:
    folder = ROOT / "docs" / "locale" / "zh_CN" / "LC_MESSAGES"
    pages = [path.relative_to(folder).with_suffix(".html") for path in folder.rglob("*.po")]
    assert len(pages) > 40
    for page in pages:
        text = (site / "zh" / page).read_text(encoding="utf-8")
        article = re.findall(r'(?s)<article role="main".*?</article>', text)[0]
        assert re.search(r"<h1>[^<]*[\u4e00-\u9fff]", article) or page.as_posix() in NAMES, page
        assert len(re.findall(r"[\u4e00-\u9fff]", article)) > 40, page
        assert stars(text) == stars((site / "en" / page).read_text(encoding="utf-8")), f"emphasis of {page}"


def stars(page: str) -> int:
    """Return the number of asterisks in the text of a page: those of emphasis that was not recognized remain."""
    return re.sub(r"(?s)<(pre|code|svg|math|script)\b.*?</\1>|<[^>]+>", "", page).count("*")


def test_every_picture_exists_and_has_its_size(site: Path) -> None:
    shown = 0
    for page in site.rglob("*.html"):
        for source, size in re.findall(r'<img[^>]* src="([^":]+)"([^>]*)>', page.read_text(encoding="utf-8")):
            assert (page.parent / source).is_file(), (page, source)
            assert re.match(r' width="\d+" height="\d+"', size), (page, source)
            shown += 1
    assert shown >= 6


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'(?:<script[^>]*src|<img[^>]*src|<link[^>]*stylesheet[^>]*href)="https?:', text), page
        assert not re.search(r'<link[^>]*href="https?:[^>]*stylesheet', text), page


def test_formulas_and_diagrams_are_drawn(site: Path) -> None:
    lesson = (site / "en" / "docs" / "learn" / "attention.html").read_text(encoding="utf-8")
    assert lesson.count("<math") > 10 and "$" not in re.sub(r"(?s)<(pre|code|script).*?</\1>", "", lesson)
    assert lesson.count("</math><math") == 4  # parts of a formula, which go on lines of their own
    for path in (site / "en" / "docs").rglob("*.html"):  # a command that the converter does not know stays as text
        assert not re.findall(r"<m\w+>(?:&(?:amp;)?|\\\w+)</m\w+>", path.read_text(encoding="utf-8")), path
    page = (site / "en" / "docs" / "architectures" / "transformer.html").read_text(encoding="utf-8")
    assert "<svg" in page and "flowchart" in page


def test_pictures_of_chinese_pages_are_in_chinese(site: Path) -> None:
    page = (site / "zh" / "docs" / "learn" / "transformer.html").read_text(encoding="utf-8")
    english = (site / "en" / "docs" / "learn" / "transformer.html").read_text(encoding="utf-8")
    assert "parts.zh_CN.svg" in page and "parts.svg" in english
    assert "<summary>答案 1</summary>" in page and "<summary>Answer 1</summary>" in english
    assert "位置，词" in (site / "zh/docs/learn/positions.html").read_text(encoding="utf-8")
    diagrams = [(site / code / "docs/architectures/word_vectors.html").read_text("utf-8") for code in ("en", "zh")]
    assert ["平均</p>" in diagram for diagram in diagrams] == [False, True]


def test_lines_break_where_a_reader_would_break_them(site: Path) -> None:
    for folder in ("en", "zh"):
        concepts = (site / folder / "docs" / "learn" / "concepts.html").read_text(encoding="utf-8")
        assert "nn.<wbr>linear_<wbr>attention.<wbr>LinearSelfAttention" in concepts
        lesson = (site / folder / "docs" / "learn" / "attention.html").read_text(encoding="utf-8")
        marks = len(re.findall("</math>[,.;:!?)，。；：、？！）」”]", lesson))
        assert lesson.count('<span class="formula"><math') == marks > 0
        notebook = re.findall(r'<a href="([^"]+attention\.ipynb)" download', lesson)[0]
        assert (site / folder / "docs" / "learn" / notebook).is_file()
        budget = (site / folder / "docs" / "guides" / "size_and_budget.html").read_text(encoding="utf-8")
        assert re.search(r"<td><p>\d+\.\d\u00a0M</p>", budget)
    keys = (site / "zh" / "docs" / "reference" / "configuration.html").read_text(encoding="utf-8")
    assert '、<wbr><code class="docutils literal notranslate"><span class="pre">.jsonl' in keys


@pytest.mark.parametrize("folder", ["en", "zh"])
def test_public_names_are_in_the_reference(site: Path, folder: str) -> None:
    text = "".join(page.read_text("utf-8") for page in (site / folder / "docs" / "reference").rglob("*.html"))
    documented = set(re.findall(r'<dt class="sig[^>]* id="([\w.]+)"', text))
    assert not {f"dragoman.{name}" for name in dragoman.__all__} - documented
    for guide in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")]:
        for module, names in re.findall(r"^from (dragoman[\w.]*) import (.+)$", guide.read_text("utf-8"), flags=re.M):
            assert not {f"{module}.{name}" for name in names.split(", ")} - documented, guide


def test_the_site_has_four_parts(site: Path) -> None:
    parts = {"en": ["Tutorial", "How it works", "Guides", "Reference"], "zh": ["教程", "工作原理", "指南", "参考"]}
    for folder, captions in parts.items():
        article = (site / folder / "docs" / "index.html").read_text("utf-8").split('<article role="main"')[1]
        assert re.findall(r'caption-text">([^<]*)', article) == captions


def test_chinese_text_is_in_the_search_index(site: Path) -> None:
    text = (site / "zh" / "searchindex.js").read_text(encoding="utf-8")
    index = gzip.decompress(b64decode(text.split("base64,")[1].split('"')[0]))
    assert {"注意", "意力", "softmax"} <= set(json.loads(index)["terms"])


@pytest.mark.parametrize(("folder", "tag"), [("en", "en"), ("zh", "zh-Hans")])
def test_every_live_page_is_in_a_frame(site: Path, folder: str, tag: str) -> None:
    shown = set()
    for page in (site / folder).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<!-- live" not in text and '.html#"' not in text, page  # an empty fragment scrolls to the frame
        for title, source in re.findall(r'<iframe[^>]* loading="lazy" title="([^"]+)" src="([^"#]+)', text):
            assert bool(re.search(r"[\u4e00-\u9fff]", title)) == (folder == "zh"), (page, title)
            assert f'<a class="alone" href="{source}' in text
            shown.add((page.parent / source).resolve())
    assert shown == set((site / folder / "live").glob("*.html")) and len(shown) == 8
    for live in shown:
        text = live.read_text(encoding="utf-8")
        assert f'<html lang="{tag}" data-language="{folder}" data-opens-in="{folder}">' in text[:100]
        assert len(text.encode()) < (2_000_000 if live.stem == "playground-demo" else 500_000), live


HEAVIEST = 450_000
"""Bytes of a page with all that it loads, not compressed."""


def test_pages_are_light(site: Path) -> None:
    weights = {}
    for page in set(site.glob("??/**/*.html")) - set(site.glob("??/live/*")):
        text = page.read_text(encoding="utf-8")
        sources = set(re.findall(r'<(?:script|img)[^>]* src="([^":?]+)', text))
        sources |= set(re.findall(r'<link[^>]*rel="(?:stylesheet|icon)"[^>]*href="([^":?]+)', text))
        weights[page] = sum((page.parent / source).stat().st_size for source in sources) + len(text.encode())
    assert [(page, weight) for page, weight in weights.items() if weight >= HEAVIEST] == []
    assert sorted(weights.values())[len(weights) // 2] < 180_000  # the navigation of each page lists all pages
