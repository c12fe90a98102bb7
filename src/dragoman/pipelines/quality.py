"""Quality flags of translations: input that is unlike the training data, and output that lacks parts of the input."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dragoman.data.languages import MIN_BYTES, language_probability
from dragoman.data.literals import has_changed_numbers, has_changed_placeholders, has_literals
from dragoman.data.profile import coverage, words_of_line
from dragoman.decoding.hypothesis import Ids, before_end
from dragoman.tokenizers import UNK

if TYPE_CHECKING:
    from dragoman.data.profile import TrainingProfile
    from dragoman.tokenizers import Tokenizer

FLAGS = (
    "empty_source", "split", "long", "language", "unknown_characters", "truncated", "empty", "length", "coverage",
    "repetition", "numbers", "placeholders",
)  # fmt: skip
"""All flags of `Translation`, in their order."""

_MIN_KNOWN_WORDS = 0.5
_MIN_LANGUAGE = 0.1
_LONGEST_NAME = 4


class QualityCheck:
    """Checks of lines and their translations; each flag depends on one line only.

    Each check runs for every line, and therefore begins with a fast test that excludes most lines.

    profile: statistics of the training data; None: no flag that needs them is set.  languages: codes of source and
    target, or None.
    """

    def __init__(
        self, tokenizer: Tokenizer, profile: TrainingProfile | None, languages: tuple[str | None, str | None]
    ) -> None:
        if profile is not None and profile.length_ratio is None:
            profile = None  # too few lines for statistics
        self._tokenizer, self._languages, self._profile = tokenizer, languages, profile
        self._longest = math.inf if profile is None else profile.source.tokens.q995
        self._alphabet = set() if profile is None else set(profile.source.alphabet)
        self._words = set() if profile is None else set(profile.frequent_words.split())
        self._identified = frozenset() if profile is None else frozenset(profile.languages)
        self._new: dict[str, bool] = {}

    def source_flags(self, text: str, ids: Ids) -> list[str]:
        """Return the flags of a source.  ids: its tokens, end of sentence included."""
        flags = []
        if len(before_end(ids)) > self._longest:
            flags.append("long")
        if self._identified and self.is_foreign(text):
            flags.append("language")
        if UNK in ids or (self._alphabet and not self._alphabet.issuperset(text) and self._has_new_characters(text)):
            flags.append("unknown_characters")
        return flags

    def _has_new_characters(self, text: str) -> bool:
        """Return whether the training data lacks a character and its normalized form."""
        new = self._new
        for character in set(text) - self._alphabet - new.keys():
            normalized = self._tokenizer.decode_source(self._tokenizer.encode_source(character))
            new[character] = not self._alphabet.issuperset(normalized.strip())
        return any(new.get(character, False) for character in text)

    def is_foreign(self, text: str) -> bool:
        """Return whether a text is probably in another language; False for very short texts and names.

        Frequent words are compared first, which is fast and avoids errors of the identifier in lines with names.
        """
        words = text.casefold().split()  # punctuation included; fast and sufficient for most lines
        if words and self._are_known(words):
            return False
        words = words_of_line(text)
        if self._are_known(words):
            return False
        if len("".join(words).encode()) < MIN_BYTES or (len(words) <= _LONGEST_NAME and text.istitle()):
            return False
        return language_probability(text, self._identified) < _MIN_LANGUAGE

    def _are_known(self, words: list[str]) -> bool:
        return sum(map(self._words.__contains__, words)) >= _MIN_KNOWN_WORDS * len(words)

    def lacks_content(self, source: str, target: str) -> bool:
        """Return whether a target is shorter than almost all targets of sources of this length in the training data."""
        profile = self._profile
        if profile is None or profile.length_ratio is None or profile.least_coverage is None:
            return False
        return coverage(source.strip(), target, profile.length_ratio) < profile.least_coverage

    def changed_parts(self, source: str, target: str) -> list[str]:
        """Return the flags of changed numbers and placeholders."""
        flags: list[str] = []
        if has_literals(f"{source}\n{target}"):
            if has_changed_numbers(source, target, self._languages):
                flags.append("numbers")
            if has_changed_placeholders(source, target):
                flags.append("placeholders")
        return flags
