"""Chinese numbers and dates, in simplified characters."""

from __future__ import annotations

import datetime
from functools import cache
from typing import Any, ClassVar

from unicode_rbnf import RbnfEngine

from dragoman.data.spelled_numbers.target import TargetLanguage

_WEEKDAYS = "一二三四五六日"


@cache
def _engine() -> RbnfEngine:
    return RbnfEngine.for_language("zh")


@cache
def _spell(number: int, rules: str = "spellout-cardinal") -> str:
    return _engine().format_number(number, ruleset_names=[rules]).text


def _year(year: int) -> str:
    # Digit by digit; the zero of a year is written 〇, that of a quantity 零 (GB/T 15835-2011).
    return "".join(_spell(int(digit), "spellout-numbering") for digit in str(year)) + "年"


class Chinese(TargetLanguage):
    """The year precedes the month and the month the day (`一九八七年三月三日`); numbers are grouped by ten thousand.

    Numbers follow the Unicode CLDR rules of written numerals: 二 throughout, not 两; 零 for one or more zeros between
    other digits; a leading 一十 is 十, elsewhere it is 一十 (十二, 一百一十二).
    """

    code = "zh"
    name = "Chinese"
    name_zh = "中文"
    tokenizer: ClassVar[dict[str, Any]] = {
        "kind": "bpe",
        "vocab_size": 200,
        "byte_fallback": False,
        "shared": False,
        "target": {"kind": "char", "byte_fallback": False},
    }
    max_ratio = 16.0  # "one hundred and seventy thousand" is 十七万
    word_order = (
        "Chinese begins a date with the year and ends it with the day (the third of March nineteen eighty-seven is "
        "一九八七年三月三日), so the lines of such a pair cross."
    )
    word_order_zh = (
        "中文的日期以年开头、以日结尾（the third of March nineteen eighty-seven 是一九八七年三月三日），"
        "所以这类句对的连线会交叉。"
    )

    def cardinal(self, number: int) -> str:
        return _spell(number)

    def ordinal(self, number: int) -> str:
        return f"第{_spell(number)}"

    def year(self, year: int) -> str:
        return _year(year)

    def date(self, day: datetime.date, form: str) -> str:
        date = f"{_year(day.year)}{_spell(day.month)}月{_spell(day.day)}日"
        weekday = f"星期{_WEEKDAYS[day.weekday()]}"
        return {"on": f"在{date}", "on_weekday": f"在{date}{weekday}"}.get(form, date)

    def example(self, sources: list[str]) -> str:
        # The year ends an English date and begins a Chinese one.
        dates = [s for s in sources if s.startswith("the ") and " of " in s]
        return min(dates or sources or ["the third of March nineteen eighty-seven"], key=len)
