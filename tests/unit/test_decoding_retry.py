"""Loops and lengths that are off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.decoding.retry import length_is_off, loops, repeats, without_loops
from dragoman.decoding.settings import SearchSettings


@pytest.mark.parametrize(
    ("tokens", "times"),
    [
        ([], 1),
        ([5], 1),
        ([5, 5, 5], 1),
        ([5, 5, 5, 5], 4),
        ([9, 5, 5, 5, 5, 5, 8], 5),
        ([7, 8] * 4, 4),
        ([1, 7, 8, 9] + [7, 8, 9] * 5 + [2], 6),
        ([7, 8, 7, 8, 7, 9, 7, 8], 1),
        (list(range(11)) * 4, 4),
        (list(range(40)), 1),
    ],
)
def test_back_to_back_ngrams_are_counted(tokens: list[int], times: int) -> None:
    assert repeats(tokens) == times


def test_fewer_repeats_count_where_fewer_are_enough() -> None:
    assert repeats([4, 7, 8, 7, 8, 7, 8, 5], enough=2) == 3
    assert repeats([4, 7, 8, 9], enough=2) == 1


@given(
    before=st.lists(st.integers(20, 29), max_size=6, unique=True),
    phrase=st.lists(st.integers(0, 9), min_size=1, max_size=7, unique=True),
    times=st.integers(4, 9),
    after=st.lists(st.integers(30, 39), max_size=6, unique=True),
)
def test_a_phrase_said_n_times_is_n_repeats(before: list[int], phrase: list[int], times: int, after: list[int]) -> None:
    assert repeats(before + phrase * times + after) == times


def test_a_loop_of_the_source_is_no_fault() -> None:
    laughter = [4, 5] * 5

    assert loops([7, 8, 9], laughter)
    assert not loops(laughter, laughter)
    assert not loops([4] * 3, [6] * 5)
    assert loops(laughter, [4, 5] * 10)


@pytest.mark.parametrize(
    ("source", "target", "off"),
    [(1, 9, False), (3, 10, True), (4, 12, False), (30, 10, False), (31, 10, True), (12, 0, True), (0, 0, False)],
)
def test_a_length_is_off_by_more_than_three_times(source: int, target: int, off: bool) -> None:
    assert length_is_off(source, target) is off


def test_a_loop_is_searched_again_without_repeated_trigrams() -> None:
    again = without_loops(SearchSettings(sample=True, beam=1, nbest=3, no_repeat_ngram=4, max_extra=7))

    assert again == SearchSettings(sample=False, beam=3, nbest=3, no_repeat_ngram=3, max_extra=7)
    assert without_loops(SearchSettings(beam=5)) == SearchSettings(beam=5, no_repeat_ngram=3)
    assert [without_loops(SearchSettings(no_repeat_ngram=n)) for n in (2, 3)] == [None, None]
