"""The English side of the built-in corpus."""

from __future__ import annotations

import datetime
from functools import cache

from dragoman.extras import extra_package

_num2words = extra_package("num2words", "train", "the built-in corpus").num2words

ENGLISH_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
ENGLISH_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@cache
def _spell(number: int, to: str) -> str:
    return str(_num2words(number, lang="en", to=to))


def cardinal(number: int) -> str:
    return _spell(number, "cardinal")


def ordinal(number: int) -> str:
    return f"the {_spell(number, 'ordinal')}"


def year(number: int) -> str:
    return f"in the year {_spell(number, 'year')}"


def date(day: datetime.date, form: str) -> str:
    """Return a date in one of DATE_FORMS."""
    number, month, in_year = _spell(day.day, "ordinal"), ENGLISH_MONTHS[day.month - 1], _spell(day.year, "year")
    if form == "month_first":
        return f"{month} the {number}, {in_year}"
    plain = f"the {number} of {month} {in_year}"
    return {"plain": plain, "on": f"on {plain}", "on_weekday": f"on {ENGLISH_WEEKDAYS[day.weekday()]}, {plain}"}[form]
