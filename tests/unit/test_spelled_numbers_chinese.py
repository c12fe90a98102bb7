"""The built-in corpus with Chinese targets: right, fixed, and with the English texts of the German corpus."""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path

import pytest

from dragoman.data.spelled_numbers import (
    DATE_FORMS,
    SpelledNumbers,
    build,
    cardinal_pair,
    date_pair,
    ordinal_pair,
    target_language,
    write,
    year_pair,
)
from dragoman.errors import UsageError

CARDINALS = [
    (0, "零"),
    (2, "二"),
    (10, "十"),
    (12, "十二"),
    (20, "二十"),
    (100, "一百"),
    (101, "一百零一"),
    (110, "一百一十"),
    (112, "一百一十二"),
    (200, "二百"),
    (1_001, "一千零一"),
    (1_010, "一千零一十"),
    (1_100, "一千一百"),
    (2_022, "二千零二十二"),
    (10_000, "一万"),
    (10_010, "一万零一十"),
    (20_301, "二万零三百零一"),
    (24_301, "二万四千三百零一"),
    (100_000, "十万"),
    (101_000, "十万一千"),
    (110_000, "十一万"),
    (120_010, "十二万零一十"),
    (222_222, "二十二万二千二百二十二"),
    (500_012, "五十万零一十二"),
    (501_012, "五十万一千零一十二"),
]
ORDINALS = [(1, "第一"), (3, "第三"), (10, "第十"), (12, "第十二"), (103, "第一百零三"), (2_031, "第二千零三十一")]
YEARS = [(1000, "一〇〇〇年"), (1066, "一〇六六年"), (1901, "一九〇一年"), (1987, "一九八七年"), (2001, "二〇〇一年")]
THIRD_OF_MARCH = {
    "plain": "一九八七年三月三日",
    "month_first": "一九八七年三月三日",
    "on": "在一九八七年三月三日",
    "on_weekday": "在一九八七年三月三日星期二",
}

DIGITS = "零一二三四五六七八九"


def below_ten_thousand(number: int) -> str:
    """Digits with units; one 零 for zeros between other digits."""
    text, skipped = "", False
    for size, unit in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = number // size % 10
        if digit:
            text += ("零" if skipped else "") + DIGITS[digit] + unit
        skipped = digit == 0 and text != ""
    return text


def chinese(number: int) -> str:
    """The rules of Chinese numerals, written down a second time: an independent witness."""
    if number == 0:
        return "零"
    high, low = divmod(number, 10_000)
    text = below_ten_thousand(high) + "万" if high else ""
    text += ("零" if high and 0 < low < 1000 else "") + below_ten_thousand(low)
    return text.removeprefix("一") if text.startswith("一十") else text


@pytest.fixture(scope="module")
def corpus() -> SpelledNumbers:
    return build(target="zh")


@pytest.mark.parametrize(("number", "text"), CARDINALS)
def test_cardinals_written_by_hand(number: int, text: str) -> None:
    assert cardinal_pair(number, "zh") == (cardinal_pair(number)[0], text)


@pytest.mark.parametrize(("number", "text"), ORDINALS)
def test_ordinals_written_by_hand(number: int, text: str) -> None:
    assert ordinal_pair(number, "zh") == (ordinal_pair(number)[0], text)


@pytest.mark.parametrize(("year", "text"), YEARS)
def test_years_written_by_hand(year: int, text: str) -> None:
    assert year_pair(year, "zh") == (year_pair(year)[0], text)


@pytest.mark.parametrize("form", DATE_FORMS)
def test_dates_written_by_hand(form: str) -> None:
    day = datetime.date(1987, 3, 3)
    assert date_pair(day, form, "zh") == (date_pair(day, form)[0], THIRD_OF_MARCH[form])


def test_months_days_and_weekdays() -> None:
    assert date_pair(datetime.date(2000, 12, 31), "on_weekday", "zh")[1] == "在二〇〇〇年十二月三十一日星期日"
    assert date_pair(datetime.date(2010, 10, 10), "plain", "zh")[1] == "二〇一〇年十月十日"
    first = [datetime.date(2024, 1, day) for day in range(1, 8)]  # a Monday and the days after it
    assert [date_pair(day, "on_weekday", "zh")[1][-3:] for day in first] == [f"星期{day}" for day in "一二三四五六日"]


def test_numbers_of_all_sizes_agree_with_an_independent_grammar() -> None:
    numbers = [*range(1_300), *range(1_300, 10**6, 499), *range(0, 10**6, 1_000)]
    assert [n for n in numbers if target_language("zh").cardinal(n) != chinese(n)] == []


def test_the_english_texts_are_those_of_the_german_corpus(corpus: SpelledNumbers) -> None:
    german = build()
    for part in ("train", "valid", "test"):
        assert [source for source, _ in getattr(corpus, part)] == [source for source, _ in getattr(german, part)]


def test_no_text_of_either_side_occurs_twice(corpus: SpelledNumbers) -> None:
    pairs = corpus.train + corpus.valid + corpus.test
    assert len({source for source, _ in pairs}) == len(pairs) == len({target for _, target in pairs})


def test_all_that_is_tested_is_made_of_characters_seen_in_training(corpus: SpelledNumbers) -> None:
    train, held_out = ({c for _, text in part for c in text} for part in (corpus.train, corpus.valid + corpus.test))
    assert held_out <= train == set("〇零一二三四五六七八九十百千万第年月日在星期")


def test_the_corpus_of_a_seed_is_always_the_same(corpus: SpelledNumbers) -> None:
    content = json.dumps([corpus.train, corpus.valid, corpus.test], ensure_ascii=False).encode()
    assert hashlib.sha256(content).hexdigest() == "f760be6cb521586dfa30a2fbea4e61a4ccd8a53bd447c80369d7d327a2876e8d"


def test_write_gives_aligned_files_that_hold_the_corpus(tmp_path: Path, corpus: SpelledNumbers) -> None:
    paths = write(tmp_path, target="zh")
    assert sorted(paths) == ["test.en", "test.zh", "train.en", "train.zh", "valid.en", "valid.zh"]
    for part in ("train", "valid", "test"):
        source, target = (paths[f"{part}.{side}"].read_bytes().decode().split("\n") for side in ("en", "zh"))
        assert list(zip(source, target, strict=True)) == [*getattr(corpus, part), ("", "")]


def test_an_unknown_target_is_refused(tmp_path: Path) -> None:
    accepted = r"target 'fr': .* accepted: de \(German\), zh \(Chinese\)"
    with pytest.raises(UsageError, match=accepted):
        write(tmp_path / "corpus", target="fr")
    with pytest.raises(UsageError, match=accepted):
        cardinal_pair(3, "fr")
    assert not (tmp_path / "corpus").exists()
