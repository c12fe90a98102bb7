"""Checks of decoded tokens for repetition and unusual length, and the second search of output that repeats itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from dragoman.decoding.hypothesis import Hypothesis, Ids, PartialHypothesis, TokenStream
from dragoman.decoding.settings import SearchSettings

__all__ = [
    "StreamWithRetry",
    "count_repeats",
    "has_unusual_length",
    "repeats_itself",
    "retry_settings",
    "search_with_retry",
]

MIN_REPEATS = 4
MAX_LENGTH_RATIO = 3.0
MIN_JUDGED_LENGTH = 10

Result = TypeVar("Result")


def count_repeats(tokens: Ids, at_least: int = MIN_REPEATS) -> int:
    """Return how often an n-gram of any n occurs back to back, 1 below `at_least`: [7, 8, 7, 8, 7, 8, 7, 8] = 4."""
    ids = np.asarray(tokens, dtype=np.int64)
    most = 1
    for n in range(1, len(ids) // at_least + 1):
        same = ids[n:] == ids[:-n]
        if np.count_nonzero(same) < (at_least - 1) * n:
            continue
        gaps = np.concatenate([[-1], np.flatnonzero(~same), [len(same)]])
        repeats = 1 + (int((gaps[1:] - gaps[:-1]).max()) - 1) // n
        if repeats >= at_least:
            most = max(most, repeats)
    return most


def repeats_itself(source: Ids, target: Ids) -> bool:
    """Return whether the target repeats an n-gram 4 times back to back, and at least twice as often as the source."""
    repeats = count_repeats(target)
    return repeats >= MIN_REPEATS and repeats >= 2 * count_repeats(source, at_least=2)


def has_unusual_length(source: int, target: int) -> bool:
    """Return whether one side has at least 10 tokens and more than 3 times the tokens of the other."""
    longer, shorter = max(source, target), min(source, target)
    return longer >= MIN_JUDGED_LENGTH and longer > MAX_LENGTH_RATIO * shorter


def retry_settings(settings: SearchSettings) -> SearchSettings | None:
    """Return the settings of the second search: no 3-gram twice.  None if the first search did not allow it either."""
    if 1 <= settings.no_repeat_ngram <= 3:
        return None
    return replace(settings, sample=False, beam=max(settings.beam, settings.nbest), no_repeat_ngram=3)


def search_with_retry(
    search: Callable[[Sequence[int], SearchSettings], Sequence[Result]],
    sources: Sequence[Ids],
    settings: SearchSettings,
    tokens: Callable[[Result], Ids],
) -> tuple[list[Result], list[bool]]:
    """Search all sources, and again those whose output repeats itself; keep the second result unless it does too.

    search: called with indices of `sources` and settings; returns one result per index.  sources: token ids, the end of
    sentence included.  tokens: returns the best target of a result.

    Returns one result per source, and whether its first output repeated itself.
    """
    results = list(search(range(len(sources)), settings))
    repeated = [repeats_itself(ids[:-1], tokens(result)) for ids, result in zip(sources, results, strict=True)]
    again, second = [index for index, flag in enumerate(repeated) if flag], retry_settings(settings)
    if again and second is not None:
        for index, result in zip(again, search(again, second), strict=True):
            if not repeats_itself(sources[index][:-1], tokens(result)):
                results[index] = result
    return results, repeated


class StreamWithRetry:
    """`search_with_retry` of one source, step by step.

    Iterating yields pairs of a partial hypothesis and whether it is the last of its search; `settings` are those of the
    current search.  Afterwards, `result` is the hypothesis that is kept, `repeated` whether the first one repeated
    itself, and `replaced` whether the second one is kept.

    search: starts a search.  source: token ids, the end of sentence included; None = no second search.
    """

    def __init__(
        self, search: Callable[[SearchSettings], TokenStream], source: Ids | None, settings: SearchSettings
    ) -> None:
        self._search, self._source, self.settings = search, source, settings
        self.repeated = self.replaced = False

    def __iter__(self) -> Iterator[tuple[PartialHypothesis, bool]]:
        self.result = yield from self._steps()
        self.repeated, second = self._repeats(self.result), retry_settings(self.settings)
        if self.repeated and second is not None:
            self.settings = second
            result = yield from self._steps()
            self.replaced = not self._repeats(result)
            self.result = result if self.replaced else self.result

    def _steps(self) -> Generator[tuple[PartialHypothesis, bool], None, Hypothesis]:
        stream = self._search(self.settings)
        while True:
            try:
                step = next(stream)
            except StopIteration as stop:
                result: Hypothesis = stop.value[0]
                yield stop.value[1], True
                return result
            yield step, False

    def _repeats(self, hypothesis: Hypothesis) -> bool:
        return self._source is not None and repeats_itself(self._source[:-1], hypothesis.tokens)
