"""What the documentation site adds to Sphinx: docstrings, and search in Chinese."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="pip install -c requirements.lock -e '.[docs]'")
DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "_site"))

import docstrings  # noqa: E402
import mathml  # noqa: E402
import pictures  # noqa: E402
import searching  # noqa: E402


def test_docstring_becomes_text_and_parameters() -> None:
    text = """Search `b` beams, with x_ * y; see `SearchSettings`.

beam: hypotheses per step, "auto" = 4.  top_k (0 = off),
seed: for sampling; other: is text.  Raises UsageError if it is 0.

Args:
    texts: Lines, any
        number of them.
"""
    assert docstrings.converted(text.split("\n"), {"beam", "top_k", "seed", "texts"}) == [
        r"Search ``b`` beams, with x\_ \* y; see :py:obj:`.SearchSettings`.",
        "",
        ':param beam: hypotheses per step, ``"auto"`` = 4.',
        ":param top_k: (0 = off): for sampling; other: is text.",
        ":param seed: for sampling; other: is text.",
        "",
        "Raises :py:exc:`.UsageError` if it is 0.",
        "",
        ":param texts: Lines, any number of them.",
        "",
    ]


def test_formulas_have_the_spaces_of_tex() -> None:
    space = '<mspace width="0.1667em"/>'
    product = f"<mi>sin</mi>{space}<mi>a</mi>{space}<mi>cos</mi>{space}<mi>b</mi>"
    assert product in mathml.convert(r"\sin a \cos b")
    assert space not in mathml.convert(r"-\log(p)") and space not in mathml.convert(r"x \tanh(y)").partition("tanh")[2]
    assert mathml.convert("|x| = |y|").count('lspace="0" rspace="0">&#x0007C;') == 4


def test_a_number_is_one_word_of_the_index() -> None:
    words = searching.SearchNumbers({}).split("W_V[0, 0]: −0.2056 in 0.1.0")
    assert words == ["W_V", "0", "0", "0.2056", "in", "0.1.0"]
    assert searching.SearchBigrams({}).split("梯度−0.2056") == ["梯度", "0.2056"]


def test_chinese_is_indexed_by_pairs_of_characters() -> None:
    assert searching.SearchBigrams({}).split("束搜索的 d_model，值 naïve BLEU31") == [
        "束搜", "搜索", "索的", "d_model", "naïve", "BLEU31",
    ]  # fmt: skip


def test_pictures_of_pages_are_small_and_as_new_as_their_pages() -> None:
    kept = json.loads((pictures.FOLDER / "pictures.json").read_text(encoding="utf-8"))
    old = [name for name in pictures.PICTURES if kept.get(name) != pictures.sources(name)]
    assert old == [], "scripts/docs SITE && python docs/_site/pictures.py SITE"
    assert all((pictures.FOLDER / f"{page}.png").stat().st_size < 100_000 for page, *_ in pictures.PICTURES.values())
