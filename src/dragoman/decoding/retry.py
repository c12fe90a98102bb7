"""Checks of decoded tokens for repetition and unusual length, and the second search of empty or repeated output."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from dragoman.decoding.hypothesis import Hypothesis, Ids, PartialHypothesis, TokenStream, before_end
from dragoman.decoding.settings import SearchSettings

Fault = Literal["", "empty", "repetition"]
"""Reason for a second search; "" for none."""

MIN_REPEATS = 4
MAX_LENGTH_RATIO = 3.0
MIN_JUDGED_LENGTH = 10

Result = TypeVar("Result")
Call = TypeVar("Call")


def count_repeats(tokens: Ids, at_least: int = MIN_REPEATS) -> int:
    """Return the largest number of consecutive occurrences of an n-gram, 1 if below `at_least`.

    [7, 8, 7, 8, 7, 8, 7, 8] contains 4 consecutive occurrences of [7, 8].
    """
    if len(tokens) - len(set(tokens)) < at_least - 1:
        return 1  # each repeat of an n-gram repeats at least one token
    import numpy as np  # here: most outputs do not need it, and an idle server saves its memory

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
    """Return whether the target repeats an n-gram 4 times in succession, and at least twice as often as the source."""
    repeats = count_repeats(target)
    return repeats >= MIN_REPEATS and repeats >= 2 * count_repeats(source, at_least=2)


def has_unusual_length(source: int, target: int) -> bool:
    """Return whether one side has at least 10 tokens and more than 3 times the tokens of the other."""
    longer, shorter = max(source, target), min(source, target)
    return longer >= MIN_JUDGED_LENGTH and longer > MAX_LENGTH_RATIO * shorter


def has_no_text(target: Ids) -> bool:
    """Return whether a target has no tokens."""
    return len(target) == 0


def fault_of(source: Ids, target: Ids, is_empty: Callable[[Ids], bool] = has_no_text) -> Fault:
    """Return the fault of a target.  source: token ids, with the end of sentence if the model has one."""
    text = before_end(source)
    if text and is_empty(target):
        return "empty"
    return "repetition" if repeats_itself(text, target) else ""


def retry_settings(settings: SearchSettings, fault: Fault, length: int = 0) -> SearchSettings | None:
    """Return the settings of the second search, which excludes repeated 3-grams and, for empty output, short output.

    length: number of tokens of the first output.  Returns None if the first search excluded repeated 3-grams, too.
    """
    ngram = settings.no_repeat_ngram if 1 <= settings.no_repeat_ngram <= 3 else 3
    beam = max(settings.beam, settings.nbest)
    if fault == "empty":
        shortest = max(settings.min_length, length + 1)
        return replace(settings, sample=False, beam=beam, no_repeat_ngram=ngram, min_length=shortest)
    if settings.no_repeat_ngram == ngram:
        return None
    return replace(settings, sample=False, beam=beam, no_repeat_ngram=ngram)


def search_with_retry(
    search: Callable[[Sequence[int], SearchSettings], Sequence[Result]],
    sources: Sequence[Ids],
    settings: SearchSettings,
    tokens: Callable[[Result], Ids],
    is_empty: Callable[[Ids], bool] = has_no_text,
) -> tuple[list[Result], list[Fault]]:
    """Search all sources, and search those a second time whose output is empty or repeats itself.

    The second result replaces the first one unless it has the same fault.

    search: called with indices of `sources` and settings; returns one result per index.  sources: token ids, end of
    sentence included.  tokens: returns the best target of a result.  is_empty: returns whether a target has no text.

    Returns one result per source, and the faults of the first results.
    """
    steps = searches_with_retry(search, sources, settings, tokens, is_empty)
    try:
        result = next(steps)
        while True:
            result = steps.send(result)
    except StopIteration as stop:
        found: tuple[list[Result], list[Fault]] = stop.value
        return found


def searches_with_retry(
    call: Callable[[Sequence[int], SearchSettings], Call],
    sources: Sequence[Ids],
    settings: SearchSettings,
    tokens: Callable[[Result], Ids],
    is_empty: Callable[[Ids], bool] = has_no_text,
) -> Generator[Call, Sequence[Result], tuple[list[Result], list[Fault]]]:
    """`search_with_retry` as a generator: it yields what `call` returns for a search, and is sent the results."""
    results = list((yield call(range(len(sources)), settings)))
    faults = [fault_of(ids, tokens(result), is_empty) for ids, result in zip(sources, results, strict=True)]
    again: dict[SearchSettings, list[int]] = {}
    for index, fault in enumerate(faults):
        if fault and (second := retry_settings(settings, fault, len(tokens(results[index])))) is not None:
            again.setdefault(second, []).append(index)
    for second, indices in again.items():
        for index, result in zip(indices, (yield call(indices, second)), strict=True):
            if fault_of(sources[index], tokens(result), is_empty) != faults[index]:
                results[index] = result
    return results, faults


class StreamWithRetry:
    """`search_with_retry` for one source, step by step.

    Iterating yields pairs of a partial hypothesis and a flag that is set for the last one of a search; `settings` are
    the settings of the current search.  Afterwards, `result` is the final hypothesis, `fault` the fault of the first
    result, and `replaced` whether the second result replaced the first one.

    search: starts a search.  source: token ids, end of sentence included; None: no second search.  is_empty: as in
    `search_with_retry`.
    """

    def __init__(
        self,
        search: Callable[[SearchSettings], TokenStream],
        source: Ids | None,
        settings: SearchSettings,
        is_empty: Callable[[Ids], bool] = has_no_text,
    ) -> None:
        self._search, self._source, self._is_empty, self.settings = search, source, is_empty, settings
        self.fault: Fault = ""
        self.replaced = False

    def __iter__(self) -> Iterator[tuple[PartialHypothesis, bool]]:
        self.result = yield from self._steps()
        self.fault = self._fault_of(self.result)
        second = retry_settings(self.settings, self.fault, len(self.result.tokens)) if self.fault else None
        if second is not None:
            self.settings = second
            result = yield from self._steps()
            self.replaced = self._fault_of(result) != self.fault
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

    def _fault_of(self, hypothesis: Hypothesis) -> Fault:
        return "" if self._source is None else fault_of(self._source, hypothesis.tokens, self._is_empty)
