"""The Chinese texts of the pages use the terms that `docs/design.md` lists, and every text has both languages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HAN = re.compile(r"[\u4e00-\u9fff]")


def sources() -> list[Path]:
    pages = [path for path in (ROOT / "src/dragoman/pages").iterdir() if path.suffix in (".html", ".js", ".py")]
    others = [*(ROOT / "src/dragoman/interpret/walkthrough").glob("*.toml")]
    return sorted([*pages, *others, *(ROOT / "src/dragoman/evaluation/compare").glob("*.py")])


def terms() -> list[tuple[str, list[str], list[str]]]:
    """English term, Chinese terms, terms that are not used."""
    text = (ROOT / "docs/design.md").read_text("utf-8").partition("## Terms of the pages")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    return [(english, chinese.split(", "), others.split(", ")) for english, chinese, others in rows]


def test_the_table_is_read() -> None:
    assert len(terms()) > 20 and ("token", ["词元"], ["令牌", "词语单元"]) in terms()


@pytest.mark.parametrize("path", [*sources(), *(ROOT / "docs/locale").rglob("*.po")], ids=lambda path: path.name)
def test_no_page_uses_another_name(path: Path) -> None:
    text = path.read_text("utf-8")
    wrong = {word: chinese[0] for _, chinese, others in terms() for word in others if re.search(word, text)}
    assert wrong == ({"令牌": "词元"} if path.name == "deployment.po" else {})  # there, a secret


def test_every_term_is_used() -> None:
    text = "".join(path.read_text("utf-8") for path in sources())
    assert [word for _, chinese, _ in terms() for word in chinese if word not in text] == []


PHRASES = [
    "看译文逐词生成，看注意力落在何处", "模型的输出与把握", "逐步推演：前向、反向与更新", "逐词去除",
    "每行对应一个查询词元", "被束搜索淘汰", "已生成句末符", "颜色深浅按概率的平方根", "各子层的贡献",
    "移除后的损失增量", "压低错误词的概率，抬高正确词的概率", "还会除以梯度平方滑动平均的平方根", "搜索得分",
    "logits（未归一化得分）", "更新前", "更新后", "词元 → 编号",
]  # fmt: skip
"""Phrases as a native speaker writes them; those before a review were translated word by word."""


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_reviewed_phrase_stands_on_a_page(phrase: str) -> None:
    assert any(phrase in path.read_text("utf-8") for path in sources())


@pytest.mark.parametrize("path", [path for path in sources() if path.suffix == ".html"], ids=lambda path: path.name)
def test_every_text_of_a_template_has_both_languages(path: Path) -> None:
    text = path.read_text("utf-8")
    english, chinese = (
        re.findall(f'<span lang="{code}">(.*?)</span>(?!</b>)', text, re.DOTALL) for code in ("en", "zh")
    )
    assert len(english) == len(chinese) and not [one for one in chinese if not HAN.search(one)]
    calls = re.findall(r'both\("(?:[^"]*)", "([^"]*)"\)', text)
    assert not [one for one in calls if not HAN.search(one)]
    assert len(re.findall(r'aria-label="[A-Za-z{]', text)) == len(re.findall(r'data-label-zh="', text))
