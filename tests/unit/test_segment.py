"""Splitting long text and joining the translations of its parts."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.data.sentences import join_parts, split_text


def words(text: str) -> int:
    return len(text.split()) + 1


def characters(text: str) -> int:
    return len(text.strip()) + 1


ANY = st.text(st.sampled_from("abcÄé.!?…,;: \t\u2028。！、，一二” ()\u0301"), max_size=80)


@given(text=ANY, limit=st.integers(3, 30))
def test_no_character_is_lost_and_no_part_too_long(text: str, limit: int) -> None:
    parts = split_text(text, limit, characters)

    assert "".join(parts) == text
    assert all(characters(part) <= limit for part in parts)


@given(text=ANY)
def test_what_fits_is_one_part(text: str) -> None:
    assert split_text(text, 200, characters) == [text]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One two. Three four. Five six.", ["One two. ", "Three four. ", "Five six."]),
        ("He said “One!” Two more? (Yes.) No…  Five.", ["He said “One!” ", "Two more? (Yes.) ", "No…  Five."]),
        ("See Dr. Smith now. J. S. Bach played.", ["See Dr. Smith ", "now. ", "J. S. Bach ", "played."]),
        ("at approx. five we go", ["at approx. five ", "we go"]),
        ("One, two three, four five", ["One, two three, ", "four five"]),
        ("one two three four five", ["one two three ", "four five"]),
    ],
)
def test_sentences_come_first_then_clauses_then_words(text: str, parts: list[str]) -> None:
    assert split_text(text, 4, words) == parts


def test_chinese_and_japanese_sentences_need_no_space() -> None:
    text = "你好世界。今天很好！「走吧。」我们走"

    assert split_text(text, 8, characters) == ["你好世界。", "今天很好！", "「走吧。」", "我们走"]


def test_short_sentences_share_a_part() -> None:
    assert split_text("A b. C d. E f. G h.", 5, words) == ["A b. C d. ", "E f. G h."]


def test_an_accent_stays_with_its_letter() -> None:
    parts = split_text("e\u0301" * 30, 8, characters)

    assert len(parts) > 1
    assert not any(part.startswith("\u0301") for part in parts)


def test_parts_whose_whole_is_longer_than_their_sum_stay_apart() -> None:
    def jealous(text: str) -> int:
        return len(text.split()) + 1 + 9 * text.strip().count(". ")

    assert split_text("A bb. C dd. E ff.", 6, jealous) == ["A bb. ", "C dd. ", "E ff."]


@pytest.mark.parametrize(
    "text",
    [
        "." * 300_000,
        "!" * 100_000,
        "?! " * 100_000,
        "x?!" * 100_000,
        "…”" * 150_000,
        " " * 300_000,
        "a." * 150_000,
        "e" + "\u0301" * 300_000,
    ],
)
def test_odd_text_takes_no_odd_time(text: str) -> None:
    start = time.process_time()

    parts = split_text(text, 9_000, characters)

    assert "".join(parts) == text
    assert time.process_time() - start < 5


def test_chinese_sentences_are_packed_whole_and_keep_their_closing_marks() -> None:
    text = "他说：“我们走吧！”她不同意。然后他们都笑了？是的！！！我们回家吧。"
    parts = split_text(text, 14, characters)
    assert "".join(parts) == text
    assert parts == ["他说：“我们走吧！”", "她不同意。然后他们都笑了？", "是的！！！我们回家吧。"]
    clauses = split_text("我们回家，他们留下，你呢？", 8, characters)
    assert clauses == ["我们回家，", "他们留下，", "你呢？"]


@pytest.mark.parametrize(
    ("sources", "targets", "joined"),
    [
        (["One. ", "Two."], ["Eins.", "Zwei."], "Eins. Zwei."),
        (["One.", " Two."], ["Eins.", "Zwei."], "Eins. Zwei."),
        (["One. ", "Two."], ["一。", "二。"], "一。二。"),
        (["一。", "二。"], ["One.", "Two."], "One. Two."),
        (["一。", "二。"], ["いち。", "に。"], "いち。に。"),
        (['"Go." ', '"No."'], ["“走。”", "“不。”"], "“走。”“不。”"),
        (["“走。”", "“不。”"], ['"Go."', '"No."'], '"Go." "No."'),
        (['"One." ', "Two."], ["“一。”", "two."], "“一。”two."),
        (["One. ", '"Two."'], ["One.", "“二。”"], "One.“二。”"),
        (["One. ", "Two."], ["一。", "𡡡。"], "一。𡡡。"),
        (["twoth", "ree"], ["zweid", "rei"], "zweidrei"),
        (["One. ", "!!! ", "Two."], ["Eins.", "", "Zwei."], "Eins. Zwei."),
        ([], [], ""),
    ],
)
def test_parts_are_joined_with_a_space_if_the_target_uses_spaces(
    sources: list[str], targets: list[str], joined: str
) -> None:
    assert join_parts(sources, targets) == joined


@pytest.mark.parametrize(
    ("sources", "targets", "joined"),
    [
        (["A.\t", "B.\t", "C."], ["a", "", "c"], "a\t\tc"),
        (["A.\t", "B."], ["", "b"], "\tb"),
        (["A.\t", "B."], ["a", ""], "a\t"),
        (["A.\n", "B. ", "C.\t", "D."], ["a", "", "", "d"], "a\n\td"),
        (["A. ", "B. ", "C."], ["a", "", "c"], "a c"),
        (["A. ", "B."], ["", "b"], "b"),
        (["A.\t", "B."], ["", ""], ""),
    ],
)
def test_whitespace_around_an_empty_translation_is_kept(sources: list[str], targets: list[str], joined: str) -> None:
    assert join_parts(sources, targets, keep_space=True) == joined
