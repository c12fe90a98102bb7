"""Numbers, which a translation keeps in value, and whether a text has words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from dragoman.data.languages import language_code
from dragoman.data.spans import find_spans, shield

_DIGITS = re.compile(r"\d+")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}([.,'’\u00a0\u2009\u202f ])\d{3}(?:\1\d{3})*(?!\d)")
_DECIMAL_MARK = re.compile(r"(?<=\d)[.,](?=\d)")
_SCALE = re.compile(
    r"[百千万萬亿億兆]|\b(?:thousand|[mbtr]illion|tausend|million|milliard|mille|mil\b|mio|mrd|miljo|tisíc|тыс|милли)",
    re.IGNORECASE,
)
_SCALE_WORDS = {
    "百": (2,), r"千|thousand|tausend|milles?\b|mil\b|tisíc|tys|тыс|tusen|tusind|duizend|k\b": (3,), "[万萬]": (4,),
    r"mi(?:l|ll|lh|lj)i?[oóõã]|mio\b|mln|mn?\b|милл?ион|млн": (6,), "[亿億]": (8,),
    r"mill?iard|miljard|mrd|mld|bn\b|милл?иард|млрд": (9,), "兆": (12,),
    "bi(?:l|ll|lh|lj)i?[oóõã]|билл?ион": (9, 12), "tri(?:l|ll|lh|lj)i?[oóõã]|трилл?ион": (12, 18),
}  # fmt: skip
"""Beginnings of scale words, and their possible exponents of ten."""
_SCALE_EXPONENTS = tuple(_SCALE_WORDS.values())
_SCALE_WORD = re.compile(
    rf"[ \u00a0\u202f-]?(?:{'|'.join(f'({words})' for words in _SCALE_WORDS)})[^\W\d百千万萬亿億兆]*\.?", re.IGNORECASE
)
_NUMBER = re.compile(_GROUPED.pattern + r"|\d+(?:[.,]\d+)*")
_MOST_SCALE_WORDS = 3
_MOST_SPELLED = 100
"""Largest number of different numbers that are searched for in words."""
_TWO_PARTS = re.compile(r"(?<![\d.,:])\d{1,6}(?:[.,:]| ?h ?)(\d\d?)(?![.,:]?\d|\.\s?[a-z])")
"""Decimal fractions and times, but not 1,000 and dates such as 3.5. or 3.5.2010."""
_CLOCK = re.compile(r"[ap]\. ?m\.|\d ?[ap]m\b|o['’]clock|\b\d{1,2}:\d\d\b", re.IGNORECASE)
_MONTH = re.compile(r"\d ?[月월]")
"""Months written as numbers, which other languages write as names."""
_OFTEN_SPELLED = 12
"""Whole numbers up to this one may be missing, since they are often written as words, in forms that CLDR lacks, too."""
_MAX_SPELLED_DIGITS = 7
_QUARTERS = {"15", "30", "45", "25", "5", "50", "75"}
"""Minutes and decimal places that are often written as words: half past two, two and a half."""
_QUARTER_WORDS = {
    "en": r"\b(?:half|halves|quarters?)\b", "de": r"\bhalb|einhalb|hälfte|\b(?:drei)?viertel|anderthalb",
    "fr": r"\bdemie?s?\b|\bquarts?\b|moitié", "es": r"\bmedi[ao]\b|\bcuartos?\b|mitad",
    "it": r"\bmezz|\bquart[oi]\b|metà", "pt": r"\bmei[ao]\b|\bquartos?\b|metade",
    "nl": r"\bhal(?:f|ve)|enhalf|\bkwart\b|anderhalf", "pl": "pół|połow|kwadrans|ćwierć",
    "cs": r"\bpůl|čtvrt|polovin", "sk": r"\bpol\b|štvrť|štvrt|polovic",
    "ru": r"\bпол\b|полчас|полтор|половин|четверт", "sv": r"\bhalv|\bkvart\b", "da": r"\bhalv|\bkvart\b",
    "zh": "半|刻", "ja": "半",
}  # fmt: skip
"""Words for a half or a quarter; for other languages, every text is assumed to have one."""
_DECADE = re.compile("(?:1[89]|20)[1-9]0")


def has_words(text: str) -> bool:
    """Return whether a text has letters outside of spans that are copied: not a number, a URL or a row of dashes."""
    return any(map(str.isalpha, shield(text, find_spans(text))))


def has_changed_numbers(source: str, target: str, languages: tuple[str | None, str | None] = (None, None)) -> bool:
    """Return whether the numbers in digits of two texts differ in value.

    Separators, order, leading zeros and repetitions are not compared.  A number that only one text has in digits counts
    unless the other spells it out or has it in Roman digits.  A whole number of the source up to 12 that the target
    lacks is considered spelled out.  12-hour and 24-hour clocks agree, and so do 1990 and 90, but not 3 million and 30
    million.  languages: codes of source and target.
    """
    scaled = bool(_SCALE.search(source) or _SCALE.search(target))
    source, target = _with_ascii_digits(source), _with_ascii_digits(target)
    if (scaled or _DECIMAL_MARK.search(source) or _DECIMAL_MARK.search(target)) and _differ_by_power(source, target):
        return True
    ours, theirs = _numbers(source, scaled), _numbers(target, scaled)
    if ours == theirs:
        return False
    if max(len(ours - theirs), len(theirs - ours)) > _MOST_SPELLED:
        return True
    clock = bool(_CLOCK.search(source) or _CLOCK.search(target))
    missing = _not_spelled(ours - theirs, target, languages[1])
    added = _not_spelled(theirs - ours, source, languages[0])
    paired = [(a, b) for a in missing for b in added if _same_time(a, b, clock)]
    missing -= {a for a, _ in paired} | _spoken_parts(source, target, languages[1], scaled)
    added -= {b for _, b in paired} | _spoken_parts(target, source, languages[0], scaled)
    if clock:
        missing -= _spoken_hours(missing, target, languages[1])
        added -= _spoken_hours(added, source, languages[0])
    if missing and added:
        return True
    precise = _numbers(_two_parts(source), scaled) - {"0", "12"}  # 12 may be the word noon
    spelled_in_source = _speller(languages[0]) is None or _MONTH.search(target) is not None
    return any(_is_large(n) or n in precise for n in missing) or any(
        _is_large(n) or not (spelled_in_source or n == "1") for n in added
    )


def _two_parts(text: str, second: Collection[str] | None = None) -> str:
    """Return the decimal fractions and times of a text, one per line.  second: accepted second parts; None: all."""
    return "\n".join(match[0] for match in _TWO_PARTS.finditer(text) if second is None or match[1] in second)


def _spoken_parts(text: str, other: str, language: str | None, scaled: bool) -> set[str]:
    """Return the numbers of 2:30 or 2.5 if the other text, in `language`, has a word such as half."""
    words = _QUARTER_WORDS.get(language_code(language) or "")
    is_spoken = words is None or re.search(words, other, re.IGNORECASE) is not None
    return _numbers(_two_parts(text, _QUARTERS), scaled) if is_spoken else set()


def _is_large(number: str) -> bool:
    return len(number) > 2 or int(number) > _OFTEN_SPELLED


def _numbers(text: str, scaled: bool) -> set[str]:
    """Return the numbers of a text without separators; scaled: without decimal marks and final zeros either.

    In scaled form, 1.5 million, 1,500,000 and 150万 are equal.
    """
    text = _GROUPED.sub(lambda match: match[0].replace(match[1], ""), text)
    if scaled:
        text = _DECIMAL_MARK.sub("", text)
        return {number.strip("0") or "0" for number in _DIGITS.findall(text)}
    return {number.lstrip("0") or "0" for number in _DIGITS.findall(text)}


def _with_ascii_digits(text: str) -> str:
    if text.isascii():
        return text
    return "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)


def _differ_by_power(source: str, target: str) -> bool:
    """Return whether a number that only the source has is a power of ten times one that only the target has."""
    ours, theirs = _values(source), _values(target)
    known_to_us, known_to_them = {value for one in ours for value in one}, {value for one in theirs for value in one}
    missing = {digits for number in ours if number.isdisjoint(known_to_them) for digits, _ in number}
    return any(digits in missing for number in theirs if number.isdisjoint(known_to_us) for digits, _ in number)


def _values(text: str) -> list[set[tuple[str, int]]]:
    """Return the possible values of each number, as (digits, exponent of ten): of 1.5 million, 1.5 and 1,500,000.

    A number has the values with and without its scale word, which may be misrecognized.  A number without a scale word
    may share that of another: 2 to 3 million.
    """
    matches = list(_NUMBER.finditer(text))
    scales = [_scales(text, match.end()) for match in matches]
    shared = set().union(*scales)
    decimal_forms: list[set[tuple[str, int]]] = []
    for match, own in zip(matches, scales, strict=True):
        for digits, exponents in _readings(match, scaled=bool(own)):
            zeros = len(digits) - len(digits.rstrip("0"))
            powers = {zeros + exponent + scale for exponent in exponents for scale in {0, *(own or shared)}}
            plain = digits.strip("0")
            decimal_forms.append({(plain, power) for power in powers} if plain else {("0", 0)})
    return decimal_forms


def _readings(match: re.Match[str], scaled: bool) -> list[tuple[str, tuple[int, ...]]]:
    """Return the digits and possible exponents of a match of `_NUMBER`, which is a number or several such as 1.2.3."""
    parts = _DIGITS.findall(match[0])
    if match[1]:  # 1.234 is 1234, but 1.234 million is probably a decimal fraction
        return [("".join(parts), (0, -3) if scaled and len(parts) == 2 else (0,))]
    if len(parts) == 2:
        return [("".join(parts), (-len(parts[1]),))]
    if len(parts) == 1 and match.string[match.start() - 1 : match.start()] == ".":
        return [(parts[0], (0, -len(parts[0])))]
    return [(part, (0,)) for part in parts]


def _scales(text: str, start: int) -> set[int]:
    """Return the possible exponents of the scale words at an index of a text: {9} for `mil millones`."""
    scales: set[int] = set()
    for _ in range(_MOST_SCALE_WORDS):
        match = _SCALE_WORD.match(text, start)
        if match is None:
            break
        own, start = _SCALE_EXPONENTS[(match.lastindex or 1) - 1], match.end()
        scales = {one + other for one in scales or {0} for other in own}
    return scales


def _same_time(one: str, other: str, clock: bool) -> bool:
    """Return whether two numbers may be the same hour (8 and 20, if `clock`) or the same year (1990 and 90)."""
    if len(one) > 4 or len(other) > 4:
        return False
    low, high = sorted((int(one), int(other)))
    return (clock and high < 25 and high - low == 12) or (high >= 1000 and high % 100 == low)


def _not_spelled(numbers: set[str], text: str, language: str | None) -> set[str]:
    """Return the numbers that a text does not contain as words or in Roman digits."""
    folded = _folded(text) if numbers else ""
    return {number for number in numbers if not _is_spelled(number, text, folded, language)}


def _spoken_hours(numbers: set[str], text: str, language: str | None) -> set[str]:
    """Return the hours of the 12-hour clock that a text spells out in the 24-hour clock, or vice versa, and 0."""
    hours = {number: str((int(number) + 12) % 24) for number in numbers if len(number) < 3 and int(number) < 25}
    left = _not_spelled(set(hours.values()), text, language)
    return {"0"} | {number for number, other in hours.items() if other not in left}


def _is_spelled(number: str, text: str, folded: str, language: str | None) -> bool:
    if any(form in folded for form in _spelled_forms(number, language)):
        return True
    if _DECADE.fullmatch(number) and _is_spelled(number[2:], text, folded, language):
        return True  # the eighties
    roman, rest = "", int(number) if len(number) < 3 and int(number) < 50 else 0
    for value, digits in ((40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")):
        roman, rest = roman + digits * (rest // value), rest % value
    return bool(roman) and re.search(rf"\b{roman}(?:er?|ère|ème|th|st|nd|rd)?\b", text) is not None


def _folded(text: str) -> str:
    """Return the lower-case letters of a text, without spaces and hyphens."""
    return "".join(filter(str.isalpha, text.casefold()))


@lru_cache(maxsize=4096)
def _spelled_forms(number: str, language: str | None) -> tuple[str, ...]:
    """Return the forms of a number in words, as `_folded` text; () if CLDR has no rules for the language."""
    engine = _speller(language)
    if engine is None or len(number) > _MAX_SPELLED_DIGITS:
        return ()
    from unicode_rbnf import FormatPurpose

    forms = set()
    for purpose in (FormatPurpose.CARDINAL, FormatPurpose.ORDINAL, FormatPurpose.YEAR):
        one = {_folded(form) for form in engine.format_number(1, purpose).text_by_ruleset.values()}
        spelled = {_folded(form) for form in engine.format_number(int(number), purpose).text_by_ruleset.values()}
        # "a hundred" as well as "one hundred"
        forms |= spelled | {form[:-1] for form in spelled if len(form) > 8}  # quatre-vingt(s)
        forms |= {form.removeprefix(first) for form in spelled for first in one if len(form) > len(first) + 3}
    return tuple(sorted(form for form in forms if form))


@lru_cache
def _speller(language: str | None) -> Any:
    """Return an engine that spells numbers with the CLDR rules of a language; None if it has none."""
    if language is None:
        return None
    from unicode_rbnf import RbnfEngine  # imported here because it is rarely needed

    try:
        return RbnfEngine.for_language(re.split(r"[-_]", language.casefold())[0])
    except ValueError:
        return None
