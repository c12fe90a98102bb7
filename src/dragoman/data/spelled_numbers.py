"""The built-in corpus: spelled-out numbers and dates, English to German.

Each English text has exactly one German reference, so a translation is either right or wrong.  The word order differs:
`twenty-four` is `vierundzwanzig` (four-and-twenty), and `March the third` is `der dritte März` (the third March).

    kind      English                                             German
    cardinal  twenty-four thousand, three hundred and one         vierundzwanzigtausenddreihunderteins
    ordinal   the one hundred and third                           der einhundertdritte
    year      in the year nineteen eighty-seven                   im Jahr neunzehnhundertsiebenundachtzig
    date      the third of March nineteen eighty-seven            der dritte März neunzehnhundertsiebenundachtzig
              March the third, nineteen oh-one                    der dritte März neunzehnhunderteins
              on the third of March nineteen eighty-seven         am dritten März neunzehnhundertsiebenundachtzig
              on Tuesday, the third of March nineteen eighty-seven
                                                  am Dienstag, dem dritten März neunzehnhundertsiebenundachtzig

Every English and every German text occurs only once in the whole corpus.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from num2words import num2words  # type: ignore[import-untyped]

from dragoman.errors import DragomanError, UsageError
from dragoman.io.writing import atomic_file

__all__ = ["DATE_FORMS", "SpelledNumbers", "build", "cardinal_pair", "date_pair", "ordinal_pair", "write", "year_pair"]

TextPair = tuple[str, str]
Drawn = TypeVar("Drawn", bound=Hashable)

LARGEST = 999_999
FIRST_YEAR, LAST_YEAR = 1000, 2099
FIRST_DATED_YEAR = 1100
FIRST_WEEKDAY_YEAR = 1800
"""The weekdays are correct; before this year the Gregorian calendar was not yet common."""

DATE_FORMS = ("plain", "month_first", "on", "on_weekday")

ENGLISH_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
GERMAN_MONTHS = (
    "Januar", "Februar", "März", "April", "Mai", "Juni",
    "Juli", "August", "September", "Oktober", "November", "Dezember",
)  # fmt: skip
ENGLISH_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
GERMAN_WEEKDAYS = ("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag")

HELD_OUT = {"cardinal": 0.45, "ordinal": 0.15, "year": 0.05, "date": 0.35}
"""Shares of the kinds in the validation and test splits."""

POOL = {"cardinal": 14_000, "ordinal": 4_000, "date": 10_000}
"""Texts of each kind before splitting; every year is used."""

VALID_ITEMS, TEST_ITEMS = 500, 1_000
ZERO_SHARE = 0.2


@dataclass(frozen=True)
class SpelledNumbers:
    """The three splits of the corpus, each a list of (English, German)."""

    train: list[TextPair]
    valid: list[TextPair]
    test: list[TextPair]


def cardinal_pair(number: int) -> TextPair:
    """Return e.g. `twenty-four` and `vierundzwanzig`, for 0 to 999,999.  Raises UsageError otherwise."""
    _check("number", number, 0, LARGEST)
    return _spell(number, "en", "cardinal"), _spell(number, "de", "cardinal")


def ordinal_pair(number: int) -> TextPair:
    """Return e.g. `the twenty-fourth` and `der vierundzwanzigste`, for 1 to 999,999.  Raises UsageError otherwise."""
    _check("number", number, 1, LARGEST)
    return f"the {_spell(number, 'en', 'ordinal')}", f"der {_spell(number, 'de', 'ordinal')}"


def year_pair(year: int) -> TextPair:
    """Return e.g. `in the year nineteen oh-one` and `im Jahr neunzehnhunderteins`, for 1000 to 2099."""
    _check("year", year, FIRST_YEAR, LAST_YEAR)
    return f"in the year {_spell(year, 'en', 'year')}", f"im Jahr {_spell(year, 'de', 'year')}"


def date_pair(day: datetime.date, form: str) -> TextPair:
    """Return a date in one of DATE_FORMS, from 1100 to 2099 (`on_weekday` from 1800).  Raises UsageError otherwise."""
    if form not in DATE_FORMS:
        raise UsageError(f"date form {form!r}; accepted: {', '.join(DATE_FORMS)}")
    _check("year of the date", day.year, FIRST_WEEKDAY_YEAR if form == "on_weekday" else FIRST_DATED_YEAR, LAST_YEAR)
    english_day, german_day = _spell(day.day, "en", "ordinal"), _spell(day.day, "de", "ordinal")
    english_month, german_month = ENGLISH_MONTHS[day.month - 1], GERMAN_MONTHS[day.month - 1]
    english_year, german_year = _spell(day.year, "en", "year"), _spell(day.year, "de", "year")
    english = f"the {english_day} of {english_month} {english_year}"
    # After "am" and "dem" the ordinal takes the weak ending of the dative, -n.
    dative = f"{german_day}n {german_month} {german_year}"
    if form == "on":
        return f"on {english}", f"am {dative}"
    if form == "on_weekday":
        weekday = day.weekday()
        return f"on {ENGLISH_WEEKDAYS[weekday]}, {english}", f"am {GERMAN_WEEKDAYS[weekday]}, dem {dative}"
    if form == "month_first":
        english = f"{english_month} the {english_day}, {english_year}"
    return english, f"der {german_day} {german_month} {german_year}"


def build(seed: int = 1) -> SpelledNumbers:
    """Return the corpus determined by a seed: about 28,600 training, 500 validation and 1,000 test pairs.

    The building blocks (numbers up to 100, ordinals up to 31) are in the training split.
    """
    rng = random.Random(seed)
    used: set[str] = set()
    basic, pools = _pools(rng)
    train, valid, test = list(_unused(basic, used)), list[TextPair](), list[TextPair]()
    for kind, share in HELD_OUT.items():
        fresh = _shuffled(list(_unused(pools[kind], used)), rng)
        n_test, n_valid = round(TEST_ITEMS * share), round(VALID_ITEMS * share)
        test.extend(fresh[:n_test])
        valid.extend(fresh[n_test : n_test + n_valid])
        train.extend(fresh[n_test + n_valid :])
    return SpelledNumbers(_shuffled(train, rng), _shuffled(valid, rng), _shuffled(test, rng))


def write(folder: Path, seed: int = 1) -> dict[str, Path]:
    """Write `train.en train.de valid.en valid.de test.en test.de` into `folder`, each atomically.

    Returns the paths by these names.  Raises DragomanError if the folder cannot be written.
    """
    corpus = build(seed)
    paths: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in ("train", "valid", "test"):
            pairs: list[TextPair] = getattr(corpus, part)
            for side, language in enumerate(("en", "de")):
                name = f"{part}.{language}"
                paths[name] = folder / name
                with atomic_file(paths[name]) as file:
                    file.write("".join(pair[side] + "\n" for pair in pairs).encode())
    except OSError as error:
        raise DragomanError(
            f"{folder}: the built-in corpus could not be written ({error.strerror}); "
            "choose a writable folder with about 4 MB of free space"
        ) from error
    return paths


def _check(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{what} {value}; accepted: {least} to {most}")


@cache
def _spell(number: int, language: str, to: str) -> str:
    text: str = num2words(number, lang=language, to=to)
    # num2words gives "einhunderteinstausend"; the correct form before "tausend" is "ein".
    return text.replace("einstausend", "eintausend") if language == "de" else text


def _pools(rng: random.Random) -> tuple[list[TextPair], dict[str, Iterable[TextPair]]]:
    """Return the building blocks, and the candidates of each kind in a fixed order."""
    basic = [cardinal_pair(n) for n in range(101)] + [ordinal_pair(n) for n in range(1, 32)]
    cardinals = [*range(101, 1000), *_distinct(lambda: _number(rng, 4, 6), POOL["cardinal"])]
    ordinals = _distinct(lambda: _number(rng, 2, 4), POOL["ordinal"])
    dates = _distinct(lambda: _date(rng), POOL["date"])
    return basic, {
        "cardinal": (cardinal_pair(n) for n in cardinals),
        "ordinal": (ordinal_pair(n) for n in ordinals),
        "year": (year_pair(y) for y in range(FIRST_YEAR, LAST_YEAR + 1)),
        "date": (date_pair(day, form) for day, form in dates),
    }


def _distinct(draw: Callable[[], Drawn], count: int) -> list[Drawn]:
    found: dict[Drawn, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)


# All choices use `random()`, the only method with the same sequence in every version of Python.


def _below(rng: random.Random, end: int) -> int:
    return int(rng.random() * end)


def _shuffled(pairs: list[TextPair], rng: random.Random) -> list[TextPair]:
    keys = [rng.random() for _ in pairs]
    return [pairs[i] for i in sorted(range(len(pairs)), key=keys.__getitem__)]


def _number(rng: random.Random, fewest_digits: int, most_digits: int) -> int:
    """Draw a number with a uniform number of digits and many zeros, because zeros change the words."""
    digits = fewest_digits + _below(rng, most_digits - fewest_digits + 1)
    number = 1 + _below(rng, 9)
    for _ in range(digits - 1):
        number = number * 10 + (0 if rng.random() < ZERO_SHARE else _below(rng, 10))
    return number


def _date(rng: random.Random) -> tuple[datetime.date, str]:
    form = DATE_FORMS[_below(rng, len(DATE_FORMS))]
    first = datetime.date(FIRST_WEEKDAY_YEAR if form == "on_weekday" else FIRST_DATED_YEAR, 1, 1).toordinal()
    last = datetime.date(LAST_YEAR, 12, 31).toordinal()
    return datetime.date.fromordinal(first + _below(rng, last - first + 1)), form


def _unused(pairs: Iterable[TextPair], used: set[str]) -> Iterator[TextPair]:
    """Yield the pairs neither side of which is in `used`, and add them."""
    for english, german in pairs:
        if f"en {english}" not in used and f"de {german}" not in used:
            used.update((f"en {english}", f"de {german}"))
            yield english, german
