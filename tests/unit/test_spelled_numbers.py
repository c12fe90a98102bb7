"""The built-in corpus: right in both languages, fixed, and without anything shared between its parts."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from pathlib import Path

import pytest

from dragoman.data.spelled_numbers import (
    SpelledNumbers,
    build,
    cardinal_pair,
    date_pair,
    ordinal_pair,
    write,
    year_pair,
)
from dragoman.errors import DragomanError, UsageError

CARDINALS = [
    (0, "zero", "null"),
    (1, "one", "eins"),
    (12, "twelve", "zwölf"),
    (16, "sixteen", "sechzehn"),
    (17, "seventeen", "siebzehn"),
    (21, "twenty-one", "einundzwanzig"),
    (24, "twenty-four", "vierundzwanzig"),
    (30, "thirty", "dreißig"),
    (66, "sixty-six", "sechsundsechzig"),
    (77, "seventy-seven", "siebenundsiebzig"),
    (100, "one hundred", "einhundert"),
    (101, "one hundred and one", "einhunderteins"),
    (999, "nine hundred and ninety-nine", "neunhundertneunundneunzig"),
    (1_001, "one thousand and one", "eintausendeins"),
    (1_100, "one thousand, one hundred", "eintausendeinhundert"),
    (21_000, "twenty-one thousand", "einundzwanzigtausend"),
    (24_301, "twenty-four thousand, three hundred and one", "vierundzwanzigtausenddreihunderteins"),
    (101_000, "one hundred and one thousand", "einhunderteintausend"),
    (201_201, "two hundred and one thousand, two hundred and one", "zweihunderteintausendzweihunderteins"),
    (500_012, "five hundred thousand and twelve", "fünfhunderttausendzwölf"),
]
ORDINALS = [
    (1, "the first", "der erste"),
    (3, "the third", "der dritte"),
    (7, "the seventh", "der siebte"),
    (8, "the eighth", "der achte"),
    (19, "the nineteenth", "der neunzehnte"),
    (20, "the twentieth", "der zwanzigste"),
    (103, "the one hundred and third", "der einhundertdritte"),
    (2_031, "the two thousand and thirty-first", "der zweitausendeinunddreißigste"),
]
YEARS = [
    (1066, "in the year ten sixty-six", "im Jahr eintausendsechsundsechzig"),
    (1600, "in the year sixteen hundred", "im Jahr sechzehnhundert"),
    (1901, "in the year nineteen oh-one", "im Jahr neunzehnhunderteins"),
    (2001, "in the year two thousand and one", "im Jahr zweitausendeins"),
    (2024, "in the year twenty twenty-four", "im Jahr zweitausendvierundzwanzig"),
]
THIRD_OF_MARCH = [
    ("plain", "the third of March nineteen eighty-seven", "der dritte März neunzehnhundertsiebenundachtzig"),
    ("month_first", "March the third, nineteen eighty-seven", "der dritte März neunzehnhundertsiebenundachtzig"),
    ("on", "on the third of March nineteen eighty-seven", "am dritten März neunzehnhundertsiebenundachtzig"),
    (
        "on_weekday",
        "on Tuesday, the third of March nineteen eighty-seven",
        "am Dienstag, dem dritten März neunzehnhundertsiebenundachtzig",
    ),
]

GERMAN_SMALL = [
    "null",
    "eins",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
]
GERMAN_TENS = ["-", "-", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
ENGLISH_SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
ENGLISH_TENS = ["-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def german(number: int, before_a_noun: bool = False) -> str:
    """The rules of German number words, written down a second time: an independent witness."""
    if number == 1 and before_a_noun:
        return "ein"
    if number < 20:
        return GERMAN_SMALL[number]
    if number < 100:
        tens = GERMAN_TENS[number // 10]
        return f"{german(number % 10, True)}und{tens}" if number % 10 else tens
    size, word = (100, "hundert") if number < 1000 else (1000, "tausend")
    rest = german(number % size, before_a_noun) if number % size else ""
    return german(number // size, True) + word + rest


def english(number: int) -> str:
    if number < 20:
        return ENGLISH_SMALL[number]
    if number < 100:
        return ENGLISH_TENS[number // 10] + (f"-{ENGLISH_SMALL[number % 10]}" if number % 10 else "")
    size, word = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = number % size
    joint = " and " if rest < 100 else ", "
    return f"{english(number // size)} {word}" + (joint + english(rest) if rest else "")


@pytest.fixture(scope="module")
def corpus() -> SpelledNumbers:
    return build()


@pytest.mark.parametrize(("number", "source", "target"), CARDINALS)
def test_cardinals_written_by_hand(number: int, source: str, target: str) -> None:
    assert cardinal_pair(number) == (source, target)


@pytest.mark.parametrize(("number", "source", "target"), ORDINALS)
def test_ordinals_written_by_hand(number: int, source: str, target: str) -> None:
    assert ordinal_pair(number) == (source, target)


@pytest.mark.parametrize(("year", "source", "target"), YEARS)
def test_years_written_by_hand(year: int, source: str, target: str) -> None:
    assert year_pair(year) == (source, target)


@pytest.mark.parametrize(("form", "source", "target"), THIRD_OF_MARCH)
def test_dates_written_by_hand(form: str, source: str, target: str) -> None:
    assert date_pair(datetime.date(1987, 3, 3), form) == (source, target)


def test_numbers_of_all_sizes_agree_with_an_independent_grammar() -> None:
    wrong = [n for n in [*range(1_300), *range(1_300, 10**6, 199)] if cardinal_pair(n) != (english(n), german(n))]
    assert wrong == []


def test_no_text_of_either_side_occurs_twice(corpus: SpelledNumbers) -> None:
    pairs = corpus.train + corpus.valid + corpus.test
    assert len({source for source, _ in pairs}) == len(pairs)
    assert len({target for _, target in pairs}) == len(pairs)


def test_sizes_and_kinds(corpus: SpelledNumbers) -> None:
    assert (len(corpus.valid), len(corpus.test)) == (500, 1000)
    assert 25_000 <= len(corpus.train) <= 30_000
    for part in (corpus.train, corpus.valid, corpus.test):
        dates = sum(target.startswith(("der", "am")) and " " in target[4:] for _, target in part) / len(part)
        years = sum(target.startswith("im Jahr ") for _, target in part)
        assert 0.3 < dates < 0.4
        assert years > 20


def test_all_that_is_tested_is_made_of_words_seen_in_training(corpus: SpelledNumbers) -> None:
    def words(part: list[tuple[str, str]]) -> set[str]:
        return {word for source, _ in part for word in source.replace(",", "").replace("-", " ").split()}

    assert words(corpus.valid) | words(corpus.test) <= words(corpus.train)
    assert ("zero", "null") in corpus.train


def test_the_corpus_of_a_seed_is_always_the_same(corpus: SpelledNumbers) -> None:
    content = json.dumps([corpus.train, corpus.valid, corpus.test], ensure_ascii=False).encode()
    assert hashlib.sha256(content).hexdigest() == "59ccc0f4a24bfe51554905447ca5fc49bdd7746cd2609a8cdb7b606f4cbf19f1"
    assert build(seed=2).test != corpus.test


def test_write_gives_aligned_files_that_hold_the_corpus(tmp_path: Path, corpus: SpelledNumbers) -> None:
    paths = write(tmp_path / "new" / "folder")
    assert sorted(paths) == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == sorted(paths)
    for part in ("train", "valid", "test"):
        source, target = (paths[f"{part}.{side}"].read_bytes().decode().split("\n") for side in ("en", "de"))
        assert list(zip(source, target, strict=True)) == [*getattr(corpus, part), ("", "")]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.en").write_text("old\n")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DragomanError, match=r"corpus.*No space left on device.*4 MB"):
        write(folder)
    assert [p.name for p in folder.iterdir()] == ["train.en"]
    assert (folder / "train.en").read_text() == "old\n"


def test_indices_outside_the_corpus_are_refused() -> None:
    with pytest.raises(UsageError, match="number 1000000; accepted: 0 to 999999"):
        cardinal_pair(1_000_000)
    with pytest.raises(UsageError, match="number 0; accepted: 1 to"):
        ordinal_pair(0)
    with pytest.raises(UsageError, match="year 2100; accepted: 1000 to 2099"):
        year_pair(2100)
    with pytest.raises(UsageError, match="1799; accepted: 1800 to 2099"):
        date_pair(datetime.date(1799, 12, 31), "on_weekday")
    with pytest.raises(UsageError, match="'short'; accepted: plain, month_first, on, on_weekday"):
        date_pair(datetime.date(1987, 3, 3), "short")
