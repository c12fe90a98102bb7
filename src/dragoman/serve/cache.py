"""A cache of translations, bounded in bytes."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from dragoman.decoding.settings import SearchSettings
from dragoman.pipelines.glossary import Glossary
from dragoman.pipelines.translated import Translation

_ENTRY_BYTES = 300
"""About what an entry needs in addition to its text and its translation."""


class TranslationCache:
    """Translations of single texts by model, settings and text; those that were unused longest are dropped first.

    limit: bytes in memory; 0 = nothing is kept.  One event loop uses it.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit, self.bytes = limit, 0
        self.observe: Callable[[bool], None] = lambda hit: None
        """Called for each text that is looked up, with whether it was found."""
        self._entries: OrderedDict[tuple[Hashable, Hashable, str], tuple[Translation, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, model: Hashable, settings: Hashable, text: str) -> Translation | None:
        """Return a translation, or None.  settings: see `settings_key`."""
        key = model, settings, text
        entry = self._entries.get(key)
        self.observe(entry is not None)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, model: Hashable, settings: Hashable, text: str, translation: Translation) -> None:
        """Keep a translation, unless it is larger than the cache."""
        key = model, settings, text
        size = _ENTRY_BYTES + sys.getsizeof(text) + _size(translation)
        if size > self.limit or key in self._entries:
            return
        self._entries[key] = translation, size
        self.bytes += size
        while self.bytes > self.limit:
            self.bytes -= self._entries.popitem(last=False)[1][1]

    def forget(self, model: Hashable) -> None:
        """Drop all translations of a model."""
        for key in [key for key in self._entries if key[0] == model]:
            self.bytes -= self._entries.pop(key)[1]


def settings_key(
    defaults: Any, *, prefix: Any = None, split: bool | None = None, glossary: Glossary | None = None, **overrides: Any
) -> Hashable | None:
    """Return a key of the arguments of `Translator.translate`: different if they may give different translations.

    defaults: the search settings of the translator.  None: such translations are not kept (samples, and texts with a
    prefix each).  Raises UsageError.
    """
    settings = SearchSettings.of(defaults, **overrides)
    if settings.sample or prefix is not None:
        return None
    return split, settings, None if glossary is None else _glossary_key(glossary)


def _glossary_key(glossary: Glossary) -> str:
    # In order: of two terms that differ in case only, the last one is used.
    content = json.dumps([list(glossary.entries.items()), glossary.strict, glossary.bonus])
    return hashlib.sha256(content.encode()).hexdigest()


def _size(value: Any) -> int:
    """Return about the bytes of a translation, and of everything in it."""
    size = sys.getsizeof(value)
    if isinstance(value, list | tuple):
        return size + sum(map(_size, value))
    if hasattr(value, "__dict__"):
        return size + sys.getsizeof(value.__dict__) + sum(map(_size, value.__dict__.values()))
    return size
