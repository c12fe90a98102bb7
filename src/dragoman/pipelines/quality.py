"""Quality flags of translations: input that is unlike the training data, and output that lost something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dragoman.data.ids import UNK
from dragoman.data.language_identifier import MIN_BYTES, language_probability
from dragoman.data.literals import has_changed_numbers, has_changed_placeholders
from dragoman.data.profile import coverage, words_of_line
from dragoman.decoding.hypothesis import Ids

if TYPE_CHECKING:
    from dragoman.data.profile import TrainingProfile
    from dragoman.data.tokenizer import Tokenizer

__all__ = ["FLAGS", "QualityCheck"]

FLAGS = (
    "empty_source", "split", "long", "language", "unknown_characters", "truncated", "empty", "length", "coverage",
    "repetition", "numbers", "placeholders",
)  # fmt: skip
"""All flags of `Translation`, in their order."""

_MIN_KNOWN_WORDS = 0.5
_MIN_LANGUAGE = 0.1
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class QualityCheck:
    """Flags of lines and their translations, each a function of one line only.

    profile: statistics of the training data; without them, only flags that need none are found.  languages: codes of
    source and target, or None.
    """

    def __init__(
        self, tokenizer: Tokenizer, profile: TrainingProfile | None, languages: tuple[str | None, str | None]
    ) -> None:
        if profile is not None and profile.length_ratio is None:
            profile = None  # too few lines to know what is unusual
        self._tokenizer, self._languages, self._profile = tokenizer, languages, profile
        self._alphabet = set() if profile is None else set(profile.source.alphabet)
        self._words = set() if profile is None else set(profile.frequent_words.split())
        self._identified = frozenset() if profile is None else frozenset(profile.languages)
        self._is_unknown: dict[str, bool] = {}

    def source_flags(self, text: str, ids: Ids) -> Iterator[str]:
        """Yield the flags of a source; ids: its tokens with the end of sentence."""
        profile = self._profile
        if UNK in ids or (profile is not None and self._has_new_characters(text)):
            yield "unknown_characters"
        if profile is not None:
            if len(ids) - 1 > profile.source.tokens.q995:
                yield "long"
            if self._identified and self._is_foreign(text):
                yield "language"

    def _has_new_characters(self, text: str) -> bool:
        return not self._alphabet.issuperset(text) and any(map(self._is_new, set(text) - self._alphabet))

    def _is_new(self, character: str) -> bool:
        """Return whether the training data has neither a character nor what the tokenizer normalizes it to."""
        if character not in self._is_unknown:
            tokenizer = self._tokenizer
            pieces = [tokenizer.source_piece(i) for i in tokenizer.encode_source(character)[:-1]]
            spelled = "".join(pieces).replace("▁", "")
            self._is_unknown[character] = any(map(_BYTE.fullmatch, pieces)) or not self._alphabet.issuperset(spelled)
        return self._is_unknown[character]

    def _is_foreign(self, text: str) -> bool:
        """Return whether a text is probably in another language; unidentified if its words are those of the training.

        Common words are compared first: that is fast, and protects lines with names from the errors of the identifier.
        """
        words = words_of_line(text)
        if sum(map(self._words.__contains__, words)) >= _MIN_KNOWN_WORDS * len(words):
            return False
        if len("".join(words).encode()) < MIN_BYTES:
            return False
        return language_probability(text, self._identified) < _MIN_LANGUAGE

    def lacks_content(self, source: str, target: str) -> bool:
        """Return whether a target is shorter than almost all targets of sources of this length in the training data."""
        profile = self._profile
        if profile is None or profile.length_ratio is None or profile.least_coverage is None:
            return False
        return coverage(source.strip(), target, profile.length_ratio) < profile.least_coverage

    def changed_parts(self, source: str, target: str) -> Iterator[str]:
        """Yield the flags of parts that a translation should keep."""
        if has_changed_numbers(source, target, self._languages):
            yield "numbers"
        if has_changed_placeholders(source, target):
            yield "placeholders"
