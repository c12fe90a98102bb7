"""Language identification of lines with py3langid (140 languages, 4.5 MB), loaded at the first call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

MIN_BYTES = 12
"""Minimum length of identified lines, in UTF-8 bytes of letters: 12 Latin, 6 Cyrillic or 4 Chinese letters."""
_NO_LANGUAGE = "zxx"
_MIN_SHARE = 0.02
_MIN_COVERED = 0.9


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def language_probability(text: str, languages: Collection[str]) -> float:
    """Return the probability that a text is in one of `languages`, or in no language, such as program code."""
    accepted = {*languages, _NO_LANGUAGE}
    return float(sum(probability for language, probability in _identifier().rank(text) if language in accepted))


def identified(text: str, languages: Collection[str]) -> list[tuple[str, float]]:
    """Return `languages` with their probabilities, most probable first, given that the text is in one of them.

    Languages that the identifier does not know have probability 0.
    """
    known = {language: float(probability) for language, probability in _identifier().rank(text)}
    probabilities = {code: known.get(code.partition("-")[0], 0.0) for code in languages}
    total = sum(probabilities.values()) or 1.0
    return sorted(((code, share / total) for code, share in probabilities.items()), key=lambda item: -item[1])


def languages_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the languages that are identified in at least 2 % of the texts, most frequent first.

    They include languages that the identifier confuses with the language of the texts.  Returns () if they cover less
    than 90 % of the texts: the identifier does not support their language, or they are in many languages.
    """
    counts = Counter(_identifier().classify(text)[0] for text in texts)
    frequent = [(code, count) for code, count in counts.most_common() if count >= _MIN_SHARE * counts.total()]
    covered = sum(count for _, count in frequent) >= _MIN_COVERED * counts.total()
    return tuple(code for code, _ in frequent) if covered else ()
