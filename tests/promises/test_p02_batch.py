"""P2: the translation of a sentence does not depend on what else is in the batch, on batch size or order."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.decoding import SearchSettings
from dragoman.pipelines.lines import Translation
from dragoman.pipelines.translation import Translator
from tiny_translator import tiny_tokenizer, tiny_transformer, tiny_translator

WORDS = ["zero", "one", "two", "three", "four", "five", "x", "été", "12"]
SENTENCES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=13).map(" ".join)
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3, "nbest": 2},
    "not shrinking": {"beam": 4, "nbest": 2, "shrink_beam": False},
    "threshold": {"beam": 4, "nbest": 1, "beam_threshold": 0.5},
    "recombining": {"beam": 4, "nbest": 1, "recombine": 1},
    "guarded": {"beam": 2, "no_repeat_ngram": 2, "min_length": 3},
    "sampled": {"sample": True, "nbest": 2, "temperature": 0.7, "top_k": 40, "top_p": 0.9, "seed": 11},
}


@functools.cache
def translator(rotary: bool) -> Translator:
    """In float64, where no two words are so nearly equal that the shape of a batch, or a processor, decides."""
    tokenizer = tiny_tokenizer()
    search = SearchSettings(beam=3, max_extra=4)
    return Translator(tiny_transformer(tokenizer.target_size, rotary=rotary).double(), tokenizer, search, max_source=24)


@functools.cache
def in_float32() -> Translator:
    tokenizer = tiny_tokenizer()
    return Translator(tiny_transformer(tokenizer.target_size), tokenizer, SearchSettings(beam=3, max_extra=4), 24)


@functools.cache
def alone(sentence: str, search: str, rotary: bool) -> Translation:
    return translator(rotary).translate([sentence], **SEARCHES[search])[0]


def assert_same(one: Translation, other: Translation) -> None:
    assert (one.text, one.tokens, one.flags) == (other.text, other.tokens, other.flags)
    assert one.score == pytest.approx(other.score, abs=1e-5)
    assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-5)
    assert [a.text for a in one.nbest] == [a.text for a in other.nbest]
    assert [a.score for a in one.nbest] == pytest.approx([a.score for a in other.nbest], abs=1e-5)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("search", SEARCHES)
@settings(max_examples=6, deadline=None)
@given(sentences=st.lists(SENTENCES, min_size=2, max_size=6), batch_tokens=st.sampled_from([1, 60, 150, 4000]))
def test_a_translation_does_not_depend_on_its_neighbours(
    search: str, rotary: bool, sentences: list[str], batch_tokens: int
) -> None:
    together = translator(rotary).translate(sentences, batch_tokens=batch_tokens, **SEARCHES[search])

    for sentence, translation in zip(sentences, together, strict=True):
        assert_same(translation, alone(sentence, search, rotary))


@settings(max_examples=10, deadline=None)
@given(
    pairs=st.lists(st.tuples(SENTENCES, SENTENCES), min_size=2, max_size=6), batch_tokens=st.sampled_from([1, 90, 4000])
)
def test_a_score_does_not_depend_on_its_neighbours(pairs: list[tuple[str, str]], batch_tokens: int) -> None:
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    together = in_float32().score(sources, targets, batch_tokens=batch_tokens)

    for source, target, score in zip(sources, targets, together, strict=True):
        own = in_float32().score([source], [target])[0]
        assert score.tokens == own.tokens
        assert score.token_log_probs == pytest.approx(own.token_log_probs, abs=1e-5)
        assert score.log_prob == pytest.approx(sum(score.token_log_probs))


def test_the_cases_are_not_trivial() -> None:
    searched = [alone("one two three", search, False).tokens for search in SEARCHES]
    other = [alone("four x 12 été", search, False).tokens for search in SEARCHES]

    assert all(len(tokens) > 2 for tokens in searched)
    assert all(one != two for one, two in zip(searched, other, strict=True))


def test_a_loop_that_is_searched_again_is_searched_again_in_any_batch() -> None:
    sentences = ["one", "one two three four five", "zero x zero", "12 12 été"]
    plain = tiny_translator(max_extra=30)
    together = plain.translate(sentences)

    assert any("repetition" in translation.flags for translation in together)
    for sentence, translation in zip(sentences, together, strict=True):
        assert_same(translation, plain.translate([sentence])[0])
