"""German numbers and dates."""

from __future__ import annotations

import datetime
from functools import cache
from typing import Any, ClassVar

from dragoman.data.spelled_numbers.target import TargetLanguage
from dragoman.extras import extra_package

_num2words = extra_package("num2words", "train", "the built-in corpus").num2words

GERMAN_MONTHS = (
    "Januar", "Februar", "März", "April", "Mai", "Juni",
    "Juli", "August", "September", "Oktober", "November", "Dezember",
)  # fmt: skip
GERMAN_WEEKDAYS = ("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag")


@cache
def _spell(number: int, to: str) -> str:
    # num2words gives "einhunderteinstausend"; the correct form before "tausend" is "ein".
    return str(_num2words(number, lang="de", to=to)).replace("einstausend", "eintausend")


class German(TargetLanguage):
    """The unit precedes the ten (`vierundzwanzig`), and the day the month (`der dritte März`)."""

    code = "de"
    name = "German"
    name_zh = "德语"
    tokenizer: ClassVar[dict[str, Any]] = {"kind": "bpe", "vocab_size": 360, "byte_fallback": False}
    max_ratio = 9.0
    word_order = (
        "German puts the unit before the ten (twenty-four is vier-und-zwanzig), so the lines of such a pair cross."
    )
    word_order_zh = (
        "德语把个位放在十位之前（twenty-four 是 vier-und-zwanzig，即“四和二十”），所以这类句对的连线会交叉。"
    )

    def cardinal(self, number: int) -> str:
        return _spell(number, "cardinal")

    def ordinal(self, number: int) -> str:
        return f"der {_spell(number, 'ordinal')}"

    def year(self, year: int) -> str:
        return f"im Jahr {_spell(year, 'year')}"

    def date(self, day: datetime.date, form: str) -> str:
        number, month, year = _spell(day.day, "ordinal"), GERMAN_MONTHS[day.month - 1], _spell(day.year, "year")
        # After "am" and "dem" the ordinal takes the weak ending of the dative, -n.
        dative = f"{number}n {month} {year}"
        if form == "on":
            return f"am {dative}"
        if form == "on_weekday":
            return f"am {GERMAN_WEEKDAYS[day.weekday()]}, dem {dative}"
        return f"der {number} {month} {year}"

    def example(self, sources: list[str]) -> str:
        # At the beginning of a text the unit is a separate token (vier und zwanzig), so the crossing is visible.
        crossing = [s for s in sources if "ty-" in s.split()[0] and len(s.split()) <= 6]
        return min(crossing or sources or ["twenty-four"], key=len)
