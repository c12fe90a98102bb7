"""The documentation site builds without a warning: every link, picture and formula, in both languages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = {"README.html", "docs/index.html", "docs/architectures/transformer.html", "docs/architectures/ssru.html"}
"""Pages whose title is a name, which is not translated."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="pip install -c requirements.lock -e '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "scripts" / "docs"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.parametrize(("folder", "language"), [("en", "en"), ("zh", "zh-CN")])
def test_every_page_is_in_the_site(site: Path, folder: str, language: str) -> None:
    pages = sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "locale" / "README.md"})
    assert len(pages) > 40
    for page in pages:
        built = site / folder / page.relative_to(ROOT).with_suffix(".html")
        assert f'lang="{language}"' in built.read_text(encoding="utf-8")[:500]


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


def test_every_picture_exists(site: Path) -> None:
    shown = 0
    for page in site.rglob("*.html"):
        for source in re.findall(r'<img[^>]* src="([^":]+)"', page.read_text(encoding="utf-8")):
            assert (page.parent / source).is_file(), (page, source)
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
    for path in (site / "en" / "docs").rglob("*.html"):  # a command that the converter does not know stays as text
        assert not re.findall(r"<m\w+>(?:&(?:amp;)?|\\\w+)</m\w+>", path.read_text(encoding="utf-8")), path
    page = (site / "en" / "docs" / "architectures" / "transformer.html").read_text(encoding="utf-8")
    assert "<svg" in page and "flowchart" in page


def test_pages_lead_to_the_other_language(site: Path) -> None:
    for folder, other in (("en", "zh"), ("zh", "en")):
        page = site / folder / "docs" / "learn" / "heads.html"
        (link,) = re.findall(
            rf'<a href="([^"]*)"[^>]*hreflang="{"zh-Hans" if other == "zh" else "en"}"', page.read_text("utf-8")
        )
        assert (page.parent / link).resolve() == site / other / "docs" / "learn" / "heads.html"
    assert {"en/docs/index.html", "zh/docs/index.html"} <= set(
        re.findall(r'href="([^"]+)"', (site / "index.html").read_text(encoding="utf-8"))
    )
