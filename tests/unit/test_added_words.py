"""Words that become tokens: old ids and other text stay the same, and text is decoded to itself."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dragoman.config import TokenizerConfig
from dragoman.errors import UsageError
from dragoman.tokenizers import EOS, Tokenizer, train_tokenizer
from dragoman.tokenizers.training import AddedWords, add_words

IMPORTED = Path(__file__).parents[1] / "golden" / "imported_v1"
LINES = ["A dog runs across a field.", "Two people sit on a bench, and a dog sleeps.", "The field and the bench."] * 9
WORDS = ["Dragoman", "sleeping bag", "naïve", "\N{LATIN SMALL LIGATURE FI}eld trip"]
TEXTS = [
    "A Dragoman runs.", "Dragoman", "two Dragomans, a sleeping bag", "a field trip", "naïve naïve", "(Dragoman)", "",
]  # fmt: skip

TOKENIZERS = {
    "bpe": {"kind": "bpe", "vocab_size": 310},
    "unigram": {"kind": "unigram", "vocab_size": 289},
    "characters": {"kind": "char", "vocab_size": 290},
    "two": {"kind": "bpe", "vocab_size": 310, "shared": False},
}


def tokenizer(name: str) -> Tokenizer:
    config = TokenizerConfig.model_validate(TOKENIZERS[name])
    return train_tokenizer(config, LINES, LINES)


@pytest.fixture(params=TOKENIZERS)
def both(request: pytest.FixtureRequest) -> tuple[Tokenizer, AddedWords]:
    old = tokenizer(request.param)
    return old, add_words(old, WORDS)


def test_old_ids_stay_the_same_and_text_is_decoded_to_itself(both: tuple[Tokenizer, AddedWords]) -> None:
    old, added = both
    new = added.tokenizer
    assert new.source_size == old.source_size + len(WORDS) and new.target_size == old.target_size + len(WORDS)
    assert [new.source_piece(i) for i in range(old.source_size)] == [
        old.source_piece(i) for i in range(old.source_size)
    ]
    for line in LINES[:3]:
        assert new.encode_source(line) == old.encode_source(line)
    for text in TEXTS:
        expected = old.decode_target(old.encode_target(text))
        assert new.decode_target(new.encode_target(text)) == new.decode_source(new.encode_source(text)) == expected
        assert len(new.source_spans(text)) == len(new.encode_source(text)) - 1


def test_a_word_is_one_token_at_the_start_of_words(both: tuple[Tokenizer, AddedWords]) -> None:
    old, added = both
    new = added.tokenizer
    if not old.source_piece(old.encode_source("a")[0]).startswith("\N{LOWER ONE EIGHTH BLOCK}"):
        for word in ("Dragoman", "sleeping bag", "naïve"):  # the text starts without a space
            assert old.source_size <= new.encode_source(f"A {word}")[1] < new.source_size
        return
    for word in ("Dragoman", "sleeping bag", "naïve", "field trip"):
        assert len(new.encode_source(word)) == 2, word
    assert new.encode_source("Dragomans")[0] == new.encode_source("Dragoman")[0]
    for text in ("xDragoman", "(Dragoman)"):
        assert new.encode_source(text) == old.encode_source(text)


def test_the_earlier_layers_of_a_word(both: tuple[Tokenizer, AddedWords]) -> None:
    old, added = both
    expected = ["Dragoman", "sleeping bag", "naïve", WORDS[3] if "\N{LATIN SMALL LIGATURE FI}" in
                added.tokenizer.source_piece(old.source_size + 3) else "field trip"]  # fmt: skip
    assert [old.decode_source(ids).strip() for ids in added.source] == expected
    assert len(added.source) == len(added.target) == len(WORDS) and not added.present
    assert all(ids and EOS not in ids for ids in [*added.source, *added.target])
    again = add_words(added.tokenizer, ["Dragoman", "another"])
    assert len(again.source) == 1 and again.tokenizer.source_size == added.tokenizer.source_size + 1


@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_sampling_does_not_divide_added_words(name: str) -> None:
    new = add_words(tokenizer(name), WORDS).tokenizer
    text = "Two Dragomans and a Dragoman sit"
    word = new.encode_source("Dragoman")[0]
    drawn = [new.encode_sampled([(text, text)], (rate, rate), seed)[0][0] for rate in (0.3, 0.9) for seed in range(20)]
    assert all(ids.count(word) == 2 and new.decode_source(ids) == text for ids in drawn)
    assert len({tuple(ids) for ids in drawn}) > 5
    if name == "bpe":
        pieces = new.pieces[0]
        assert pieces.sample(text, 0.0, random.Random(1)) == new.encode_source(text)[:-1]


def test_words_of_scripts_without_spaces_are_found_everywhere() -> None:
    added = add_words(tokenizer("bpe"), ["日本"])
    new = added.tokenizer
    word = new.source_size - 1
    assert (
        new.encode_source("日本語日本").count(word) == 2 and new.decode_source(new.encode_source("日本語")) == "日本語"
    )
    assert tokenizer("bpe").decode_source(added.source[0]) == "日本"


def test_imported_vocabularies() -> None:
    old = Tokenizer.load(IMPORTED)
    added = add_words(old, ["dogs", "bench field"])
    new = added.tokenizer
    assert new.shared and new.source_size == new.target_size == old.source_size + 2
    assert [new.source_piece(i) for i in range(old.source_size)] == [
        old.source_piece(i) for i in range(old.source_size)
    ]
    assert new.encode_source(">>fra<< dogs")[1:] == [new.encode_target("dogs")[0], EOS]
    assert new.decode_target(new.encode_target("a bench field dogs")) == "a bench field dogs"
    assert Tokenizer(*new.models).encode_source("dogs") == new.encode_source("dogs")


def test_words_that_cannot_be_tokens_are_listed_together() -> None:
    with pytest.raises(UsageError) as caught:
        add_words(tokenizer("bpe"), ["good", "", "two\nlines", "x" * 201, "good"])
    text = str(caught.value)
    assert text.count("\n") == 4 and "two lines" in text and "listed twice" in text
    assert add_words(tokenizer("bpe"), ["a"]).present == ["a"]
