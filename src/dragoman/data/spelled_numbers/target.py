"""The interface of a target language of the built-in corpus."""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from typing import Any, ClassVar


class TargetLanguage(ABC):
    """Spelling of numbers and dates, with exactly one text per number, and per date and form.

    code, name, name_zh: of the language, the last in Chinese.

    tokenizer: the section [tokenizer] of a small model.  max_ratio: data.filter.max_ratio
    with which no pair is dropped.  word_order, word_order_zh: a sentence on how it differs from English.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    name_zh: ClassVar[str]
    tokenizer: ClassVar[dict[str, Any]]
    max_ratio: ClassVar[float]
    word_order: ClassVar[str]
    word_order_zh: ClassVar[str]

    @abstractmethod
    def cardinal(self, number: int) -> str:
        """Return the translation of `twenty-four`."""

    @abstractmethod
    def ordinal(self, number: int) -> str:
        """Return the translation of `the twenty-fourth`."""

    @abstractmethod
    def year(self, year: int) -> str:
        """Return the translation of `in the year nineteen oh-one`."""

    @abstractmethod
    def date(self, day: datetime.date, form: str) -> str:
        """Return the translation of a date in one of DATE_FORMS."""

    @abstractmethod
    def example(self, sources: list[str]) -> str:
        """Return the source whose attention the report shows: a short one of another word order, if there is one."""
