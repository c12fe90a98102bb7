"""A translator that observes what it translates, for reports of documents and markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dragoman.pipelines.glossary import Term
from dragoman.pipelines.lines import Translation


class ObservedTranslator:
    """A translator that keeps what reports need: flags of each text, characters, and glossary terms."""

    def __init__(self, translator: Any) -> None:
        self._translator = translator
        self.flags: list[tuple[str, ...]] = []
        self.characters = 0
        self.terms: Counter[Term] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._translator, name)

    def translate(self, texts: Sequence[str], **settings: Any) -> list[Translation]:
        self.characters += sum(map(len, texts))
        translations: list[Translation] = self._translator.translate(texts, **settings)
        self.flags += [translation.flags for translation in translations]
        self.terms.update(term for translation in translations for term in translation.terms)
        return translations
