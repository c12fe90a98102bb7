"""Target phrases that a search must contain, or prefers: terms of a glossary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dragoman.decoding.hypothesis import Ids
from dragoman.errors import UsageError


@dataclass(frozen=True)
class Phrases:
    """The phrases of one sentence.

    ids: token ids of each phrase; a phrase that is listed twice is wanted twice.  bonus: None = the target must contain
    every phrase (Post and Vilar 2018); otherwise added to the log-probability that ranks a hypothesis, for each of its
    tokens that belongs to a phrase.  inside: one byte per token of the vocabulary, 1 if it continues a word; such
    tokens do not follow a phrase unless nothing else is possible.  Raises UsageError for an empty phrase and for a
    bonus that is not positive.
    """

    ids: tuple[tuple[int, ...], ...]
    bonus: float | None = None
    inside: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not all(self.ids):
            raise UsageError("a phrase has no tokens; give at least one token per phrase")
        if self.bonus is not None and not (self.bonus > 0 and math.isfinite(self.bonus)):
            raise UsageError(f"bonus = {self.bonus}; accepted: a positive number, or None for required phrases")

    @cached_property
    def total(self) -> int:
        """Number of tokens of all phrases."""
        return sum(map(len, self.ids))

    @property
    def start(self) -> PhraseProgress:
        """The progress of the empty hypothesis."""
        return PhraseProgress(self, (False,) * len(self.ids))

    def contained(self, tokens: Ids) -> list[bool]:
        """Return for each phrase whether the tokens contain it, without overlaps, as the search counts it."""
        progress = self.start
        for token in tokens:
            progress = progress.after(token)
        return list(progress.done)


@dataclass(frozen=True)
class PhraseProgress:
    """How much of the phrases a hypothesis contains.

    done: whether each phrase is complete.  active: phrase that has begun, -1 for none.  position: number of its tokens.
    complete: whether the last token completed a phrase.
    """

    phrases: Phrases = field(repr=False)
    done: tuple[bool, ...]
    active: int = -1
    position: int = 0
    complete: bool = False

    @property
    def met(self) -> int:
        """Number of tokens of complete phrases and of the phrase that has begun."""
        return sum(len(ids) for ids, done in zip(self.phrases.ids, self.done, strict=True) if done) + self.position

    @property
    def wanted(self) -> Sequence[int]:
        """The next token of the phrase that has begun, or the first tokens of all others."""
        if self.active >= 0:
            return [self.phrases.ids[self.active][self.position]]
        return [ids[0] for ids, done in zip(self.phrases.ids, self.done, strict=True) if not done]

    def after(self, token: int) -> PhraseProgress:
        """Return the progress after one more token.

        A token that does not continue the phrase that has begun abandons it, and may begin another one.
        """
        if self.active >= 0 and self.phrases.ids[self.active][self.position] == token:
            return self._advanced(self.active, self.position + 1)
        for number, (ids, done) in enumerate(zip(self.phrases.ids, self.done, strict=True)):
            if not done and ids[0] == token:
                return self._advanced(number, 1)
        return replace(self, active=-1, position=0, complete=False)

    def _advanced(self, number: int, position: int) -> PhraseProgress:
        if position < len(self.phrases.ids[number]):
            return replace(self, active=number, position=position, complete=False)
        done = tuple(complete or index == number for index, complete in enumerate(self.done))
        return PhraseProgress(self.phrases, done, complete=True)
