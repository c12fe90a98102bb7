"""Texts in capitals and titles are translated in their normal case."""

from __future__ import annotations

from typing import Any

import pytest
from test_quality import profile  # noqa: F401 (a fixture)

from dragoman.data.casing import NormalCase, capitalized_words, is_in_capitals, lower, title, upper
from dragoman.data.profile import TrainingProfile
from dragoman.pipelines.translation import Translator
from tiny_translator import copying_translator

WORDS = "Tom NATO I I'm Boston TV"
COMMON = ["tom", "goes", "to", "boston", "tomorrow", "and", "the", "dog", "it's", "here", "is", "not", "i"]
CASE = NormalCase.of_words(WORDS, COMMON.__contains__)


def test_capitalized_words() -> None:
    lines = ["Then Tom saw I'm on TV.", "Dogs know Tom. The dog ran.", "A TOM", "NO TOM HERE", "a Dog a dog a dog"]
    assert capitalized_words(lines).split() == ["Tom", "I'm", "TV"]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("TOM IS NOT IN BOSTON.", "Tom is not in Boston."),
        ("WE SAW NATO ON TV! I'M TOM", "We saw NATO on TV! I'm Tom"),
        ("„DER HUND“, 25 METER", "„Der hund“, 25 meter"), ("ВСЁ ХОРОШО", "Всё хорошо"), ("WARNING", "Warning"),
        ("NATO", "NATO"), ("UNESCO", "UNESCO"), ("A B C D", "A B C D"), ("Tom IS HERE", "Tom IS HERE"),
        ("OK!", "OK!"), ("北京 25", "北京 25"), ("", ""), ("IT", "IT"),
    ],
)  # fmt: skip
def test_capitals_become_normal(text: str, normal: str) -> None:
    assert CASE.of(text) == (normal, normal != text)
    assert is_in_capitals(text) == (normal != text)
    assert NormalCase(str, capitals=False).of(text) == (text, False)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Tom Goes To Boston Tomorrow", "Tom goes to Boston tomorrow"),
        ("It's Not Here: The Dog", "It's not here: The dog"),
        ("The Dog And Barack Obama Is Here", "The dog and Barack Obama is here"),
        ("Tom and the dog go", "Tom and the dog go"), ("Tom And Boston", "Tom And Boston"),
        ("I Is Not.", "I is not."), ("The Dog is", "The Dog is"), ("Is TV Not", "Is TV Not"),
        ("Anna Smith Barack Obama", "Anna Smith Barack Obama"), ("tom Goes To Boston", "tom Goes To Boston"),
    ],
)  # fmt: skip
def test_titles_become_normal(text: str, normal: str) -> None:
    assert CASE.of(text) == (normal, False)
    assert NormalCase.of_words(WORDS, COMMON.__contains__, None, True, False).of(text)[0] == text


def test_case_of_languages() -> None:
    assert upper("Straße, i") == "STRAẞE, I" and lower("STRAẞE, İI") == "straße, ii"
    assert upper("ilk ışık", "tr") == "İLK IŞIK" and lower("İLK IŞIK", "tr") == "ilk ışık"
    assert title("don't go to l'île") == "Don't Go To L'île"


def in_case(profile: TrainingProfile, **changes: Any) -> Translator:  # noqa: F811
    """Copies its input, in a model that knows the capitals of a profile."""
    translator = copying_translator(max_source=600, max_extra=20)
    side = profile.source.model_copy(update={"alphabet": profile.source.alphabet + "/:_QXZ"})
    changed = {"source": side, "target": side, "capitalized": "Tom", **changes}
    translator.describe_data(profile.model_copy(update=changed), ("en", "en"))
    return translator


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("THE OLD MAN GIVES TOM A BOOK.", "The old man gives Tom a book."),
        ("- SEE https://example.com/a_b NOW, TOM!", "See https://example.com/a_b now, Tom!"),
        ("THE OLD MAN. The book. TOM GIVES IT.", "The old man. |The book. |Tom gives it."),
        ("The Old Man Gives Tom The Book", "The old man gives Tom the book"),
        ("The Old Man Gives Obama Twelve", "The old man gives Obama twelve"),  # twelve has fewer tokens than Twelve
    ],
)
def test_a_translator_sees_the_normal_case(profile: TrainingProfile, source: str, seen: str) -> None:  # noqa: F811
    translator = in_case(profile)
    (found,) = translator.translate([source], split=True)
    line = translator.split(source, sentences=True)
    assert [part.seen for part in line.parts] == seen.split("|")
    is_title = source.istitle()
    assert (found.source, found.text) == (source, seen if is_title else source) and "language" not in found.flags
    assert [*translator.stream_tokens(source, split=True)][-1].text == found.text
    if found.sentences:
        assert [one.source for one in found.sentences] == [one.text for one in found.sentences]


def test_models_that_saw_capitals_see_them(profile: TrainingProfile) -> None:  # noqa: F811
    for changes in ({"capitals": 0.02}, {"titles": 0.02}):
        translator = in_case(profile, **changes)
        seen = [translator.split(text).parts[0].seen for text in ("THE OLD MAN", "The Old Man Gives The Book")]
        assert seen == (["THE OLD MAN", "The old man gives the book"] if "capitals" in changes else
                        ["The old man", "The Old Man Gives The Book"])  # fmt: skip


def test_without_a_profile_the_vocabulary_decides() -> None:
    translator = copying_translator(max_source=600)
    assert translator.translate(["ONE TWO THREE"])[0].text == "ONE TWO THREE"
    assert translator.split("ONE TWO THREE").parts[0].seen == "One two three"
    assert translator.split("ONE TWO THREE", prefix="ONE").parts[0].seen == "ONE TWO THREE"


def test_terms_of_a_text_in_capitals(profile: TrainingProfile) -> None:  # noqa: F811
    (found,) = in_case(profile).translate(["THE OLD MAN GIVES"], glossary={"old man": "old man"})
    assert [(term.source, term.target, term.applied) for term in found.terms] == [("old man", "OLD MAN", True)]
