"""Glossaries: which terms are found, how they reach the search, and what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import UsageError
from dragoman.pipelines.glossary import Glossary, Term, applied
from tiny_translator import tiny_tokenizer, tiny_translator

ENTRIES = {
    "dog": "Köter",
    "guide dog": "Blindenhund",
    "New York": "New York",
    "US": "USA",
    "狗": "犬",
    "re-use": "Wieder",
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The dog runs.", ["dog"]),
        ("Dog! DOG, dogs, hotdog", ["dog", "dog"]),
        ("A guide dog and a dog", ["guide dog", "dog"]),
        ("Give us the US", ["US"]),
        ("new york and New York", ["New York"]),
        ("我的狗很大", ["狗"]),
        ("re-use", ["re-use"]),
        ("the dog's bone; dog-like", ["dog", "dog"]),
        ("nothing here", []),
        ("", []),
    ],
)
def test_terms_are_whole_words_and_the_longest_ones(text: str, found: list[str]) -> None:
    assert Glossary(ENTRIES).entries_in(text) == [(source, ENTRIES[source]) for source in found]


def test_applied_terms_are_counted_in_the_text() -> None:
    terms = [("dog", "Hund"), ("dog", "Hund"), ("cat", "Katze")]
    assert [t.applied for t in applied(terms, "Ein Hund und ein Hundehalsband, Katze")] == [True, False, True]
    assert applied([("dog", "犬")], "我的犬很大") == [Term("dog", "犬", True)]


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_a_strict_glossary_is_always_followed(strict: bool, split: bool) -> None:
    translator = tiny_translator(beam=4)
    glossary = Glossary({"one": "seven", "three": "nine four"}, strict, bonus=1e-6)
    texts = ["one two. Two three one.", "two", "three", ""]
    plain = translator.translate(texts, split=split)
    found = translator.translate(texts, split=split, glossary=glossary)
    assert [[t.source for t in line.terms] for line in found] == [["one", "three", "one"], [], ["three"], []]
    assert found[1].text == plain[1].text and found[3] == plain[3]
    tokenizer = tiny_tokenizer()
    for line in found:
        for term in line.terms:
            pieces = [tokenizer.target_piece(i) for i in tokenizer.encode_target(term.target)[:-1]]
            tokens = line.tokens
            contains = any(tokens[i : i + len(pieces)] == pieces for i in range(len(tokens)))
            assert contains or not strict, (term, tokens)


def test_the_mapping_itself_is_a_glossary() -> None:
    translator = tiny_translator()
    (found,) = translator.translate(["one"], glossary={"one": "two"})
    assert found.terms[0].source == "one" and found.to_json()["terms"][0]["target"] == "two"
    assert translator.translate(["one"], glossary={}) == translator.translate(["one"])


def test_do_not_translate() -> None:
    assert Glossary({"Dragoman": "Dragoman"}).entries_in("Use Dragoman!") == [("Dragoman", "Dragoman")]


def test_unknown_characters_are_left_out() -> None:
    from dragoman.config import TokenizerConfig
    from dragoman.tokenizers import train_tokenizer
    from small_run import digit_pairs

    texts = [text for pair in digit_pairs(300) for text in pair]
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=40, byte_fallback=False), texts, texts)
    phrases = Glossary({"a": "Ж", "b": "one"}).phrases([("a", "Ж"), ("b", "one")], tokenizer)
    assert phrases is not None and len(phrases.ids) == 1
    assert Glossary({"a": "Ж"}).phrases([("a", "Ж")], tokenizer) is None


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"dog": ""}, "entry 1: target term '' is blank"),
        ({" dog": "Hund"}, "entry 1: source term ' dog' has spaces"),
        ({"dog": "Hu\nnd"}, "line end"),
        ({"dog": 3}, "entry 1: target term 3 is not a text"),
        ({"a": "b", "dog": "x" * 501}, "entry 2: target term .* has more than 500 characters"),
        (["dog"], "accepted: a mapping"),
    ],
)
def test_invalid_entries(entries: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Glossary(entries)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "glossary.tsv"
    path.write_bytes("\ufeffdog\tHund\r\n\nDragoman\n cat \t Katze \n".encode())
    glossary = Glossary.read(path, strict=True)
    assert glossary.entries == {"dog": "Hund", "Dragoman": "Dragoman", "cat": "Katze"} and glossary.strict
    path.write_text("dog\tHund\ndog\tKöter\na\tb\tc\n\tx\n", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        Glossary.read(path)
    for told in ("line 2: 'dog' stands before as 'Hund'", "line 3", "more than one tab", "line 4", "is blank"):
        assert told in str(refused.value)
    with pytest.raises(UsageError):
        Glossary.read(tmp_path / "none.tsv")


def test_a_glossary_excludes_sampling() -> None:
    with pytest.raises(UsageError, match="phrases require beam search"):
        tiny_translator(beam=1).translate(["one"], glossary={"one": "two"}, sample=True)
