"""Parts of a text that a translation keeps: numbers, and placeholders such as URLs and e-mail addresses."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import Any

__all__ = ["has_changed_numbers", "has_changed_placeholders", "has_literals"]

_DIGIT = re.compile(r"\d")
_DIGITS = re.compile(r"\d+")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}([.,'’\u00a0\u2009\u202f ])\d{3}(?:\1\d{3})*(?!\d)")
_DECIMAL_MARK = re.compile(r"(?<=\d)[.,](?=\d)")
_SCALE = re.compile(
    r"[百千万萬亿億兆]|\b(?:thousand|[mbtr]illion|tausend|million|milliard|mille|mil\b|mio|mrd|miljo|tisíc|тыс|милли)",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"[ap]\. ?m\.|\d ?[ap]m\b|o['’]clock|\b\d{1,2}:\d\d\b", re.IGNORECASE)
_MONTH = re.compile(r"\d ?[月월]")
"""Months that have names in other languages."""
_OFTEN_SPELLED = 12
"""Numbers up to this one are often written as words on one side, in languages whose words are not known as well."""
_MAX_SPELLED_DIGITS = 7
_QUARTERS = {"15", "30", "45"}
"""Minutes that are written as words: half past two, halb drei."""
_ROMAN = ((50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))

_LITERAL = re.compile(r"[\d@{<%/]")
_PLACEHOLDER = re.compile(
    r"""(?:https?|ftp)://[!\#-;=?-~]+
    | www\.[!\#-;=?-~]+
    | [A-Za-z\d._%+-]+@[A-Za-z\d-]+(?:\.[A-Za-z\d-]+)+
    | \$?\{\{?[\w.:!-]*\}?\}
    | (?<![\d%])%(?:\(\w+\)|\d\$)?[sdif]\b
    | </?[A-Za-z][^<>]*>""",
    re.VERBOSE,
)


def has_literals(text: str) -> bool:
    """Return whether a text may contain numbers or placeholders."""
    return _LITERAL.search(text) is not None or "www." in text


def has_changed_placeholders(source: str, target: str) -> bool:
    """Return whether URLs, e-mail addresses, tags or placeholders such as {name} and %s differ between two texts."""
    return _placeholders(source) != _placeholders(target)


def _placeholders(text: str) -> Counter[str]:
    return Counter(found.rstrip(".,;:!?)'") for found in _PLACEHOLDER.findall(text))


def has_changed_numbers(source: str, target: str, languages: tuple[str | None, str | None] = (None, None)) -> bool:
    """Return whether the numbers in digits of two texts differ in value.

    Separators, order, leading zeros and repetitions are not compared.  A number that only one text has in digits counts
    unless the other spells it out or has it in Roman digits.  A number of the source up to 12 that the target lacks is
    taken as spelled out.  12-hour and 24-hour clocks agree, and so do 1990 and 90.  languages: codes of source and
    target.
    """
    if not (_DIGIT.search(source) or _DIGIT.search(target)):
        return False
    scaled = bool(_SCALE.search(source) or _SCALE.search(target))
    ours, theirs = _numbers(source, scaled), _numbers(target, scaled)
    if ours == theirs:
        return False
    missing = {number for number in ours - theirs if not _is_spelled(number, target, languages[1])}
    added = {number for number in theirs - ours if not _is_spelled(number, source, languages[0])}
    clock = bool(_CLOCK.search(source) or _CLOCK.search(target))
    paired = [(a, b) for a in missing for b in added if _same_time(a, b, clock)]
    missing -= {a for a, _ in paired} | (_QUARTERS if clock else set())
    added -= {b for _, b in paired} | ({"0"} if clock else set())
    if missing and added:
        return True
    spelled_in_source = _speller(languages[0]) is None or _MONTH.search(target) is not None
    return any(map(_is_large, missing)) or any(_is_large(n) or not (spelled_in_source or n == "1") for n in added)


def _is_large(number: str) -> bool:
    return len(number) > 2 or int(number) > _OFTEN_SPELLED


def _numbers(text: str, scaled: bool) -> set[str]:
    """Return the numbers of a text without separators; scaled: without decimal marks and final zeros either.

    In scaled form, 1.5 million, 1,500,000 and 150万 are equal.
    """
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    text = _GROUPED.sub(lambda match: match[0].replace(match[1], ""), text)
    if scaled:
        text = _DECIMAL_MARK.sub("", text)
        return {number.strip("0") or "0" for number in _DIGITS.findall(text)}
    return {number.lstrip("0") or "0" for number in _DIGITS.findall(text)}


def _same_time(one: str, other: str, clock: bool) -> bool:
    """Return whether two numbers may name the same hour (8 and 20, if `clock`) or the same year (1990 and 90)."""
    if len(one) > 4 or len(other) > 4:
        return False
    low, high = sorted((int(one), int(other)))
    return (clock and high < 25 and high - low == 12) or (high >= 1000 and high % 100 == low)


def _is_spelled(number: str, text: str, language: str | None) -> bool:
    """Return whether a text contains the number as words or in Roman digits."""
    folded = _folded(text)
    if any(form in folded for form in _spelled_forms(number, language)):
        return True
    if len(number) == 4 and number[-1] == "0" and _is_spelled(number[2:], text, language):
        return True  # the eighties
    return len(number) < 3 and 0 < int(number) < 90 and re.search(rf"\b{_roman(int(number))}", text) is not None


def _folded(text: str) -> str:
    """Return the lower-case letters of a text, without spaces and hyphens."""
    return "".join(filter(str.isalpha, text.casefold()))


@lru_cache(maxsize=4096)
def _spelled_forms(number: str, language: str | None) -> tuple[str, ...]:
    """Return the number in words in all forms known for a language, as `_folded` text; () for unknown languages."""
    engine = _speller(language)
    if engine is None or len(number) > _MAX_SPELLED_DIGITS:
        return ()
    from unicode_rbnf import FormatPurpose

    forms = set()
    for purpose in (FormatPurpose.CARDINAL, FormatPurpose.ORDINAL, FormatPurpose.YEAR):
        one = {_folded(form) for form in engine.format_number(1, purpose).text_by_ruleset.values()}
        found = {_folded(form) for form in engine.format_number(int(number), purpose).text_by_ruleset.values()}
        # "a hundred" as well as "one hundred"
        forms |= found | {form[:-1] for form in found if len(form) > 8}  # quatre-vingt(s)
        forms |= {form.removeprefix(first) for form in found for first in one if len(form) > len(first) + 3}
    return tuple(sorted(form for form in forms if form))


@lru_cache
def _speller(language: str | None) -> Any:
    """Return the number speller of a language, from the rules of CLDR; None if there are none."""
    if language is None:
        return None
    from unicode_rbnf import RbnfEngine  # here, because it is rarely needed

    try:
        return RbnfEngine.for_language(re.split(r"[-_]", language.casefold())[0])
    except ValueError:
        return None


def _roman(number: int) -> str:
    text = ""
    for value, digits in _ROMAN:
        text += digits * (number // value)
        number %= value
    return text
