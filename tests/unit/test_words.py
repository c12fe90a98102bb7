"""Words and letters of texts: the fast path of ASCII text equals the definition."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.data.words import letters, word_runs, words_of_line

LINES = st.text(st.one_of(st.characters(max_codepoint=127), st.sampled_from("ßİÄé²٣Ⅷа中ひ\u2028\x1c")), max_size=12)


@given(LINES)
@example("The DOG_2 can't, I said.")
@example("\x1c\x1d\x85")
def test_ascii_text_equals_the_definition(text: str) -> None:
    folded = text.casefold()
    assert words_of_line(text) == re.findall(r"[\u3041-\u30ff\u3400-\u9fff]|[^\W\d_]+", folded)
    assert word_runs(text) == re.findall(r"\w+", text)
    assert letters(text) == ("".join(filter(str.isalpha, folded)) or text)
    assert letters(text, digits=True) == ("".join(filter(str.isalnum, folded)) or text)


@pytest.mark.parametrize(
    ("text", "words", "runs", "kept"),
    [("It's 3rd_x!", ["it", "s", "rd", "x"], ["It", "s", "3rd_x"], "itsrdx"), ("学x?", ["学", "x"], ["学x"], "学x")],
)
def test_words_and_letters(text: str, words: list[str], runs: list[str], kept: str) -> None:
    assert (words_of_line(text), word_runs(text), letters(text)) == (words, runs, kept)
