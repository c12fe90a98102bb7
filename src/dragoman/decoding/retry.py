"""Signs of a translation gone wrong that tokens alone show: loops, and far too little or too much text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dragoman.decoding.settings import SearchSettings

__all__ = ["length_is_off", "loops", "repeats", "without_loops"]

LOOP = 4
RATIO = 3.0
SHORTEST_JUDGED = 10


def repeats(tokens: Sequence[int], enough: int = LOOP) -> int:
    """How often an n-gram, of any n, follows itself without a gap: [7, 8, 7, 8, 7, 8, 7, 8] = 4; below `enough` 1."""
    ids = np.asarray(tokens, dtype=np.int64)
    most = 1
    for n in range(1, len(ids) // enough + 1):
        same = ids[n:] == ids[:-n]
        if np.count_nonzero(same) < (enough - 1) * n:
            continue
        gaps = np.concatenate([[-1], np.flatnonzero(~same), [len(same)]])
        times = 1 + (int((gaps[1:] - gaps[:-1]).max()) - 1) // n
        if times >= enough:
            most = max(most, times)
    return most


def loops(source: Sequence[int], target: Sequence[int]) -> bool:
    """True where the target says something 4 times on end, and at least twice as often as the source does."""
    times = repeats(target)
    return times >= LOOP and times >= 2 * repeats(source, enough=2)


def length_is_off(source: int, target: int) -> bool:
    """True where one side has more than 3 times the other's tokens; below 10 tokens the ratio says nothing."""
    longer, shorter = max(source, target), min(source, target)
    return longer >= SHORTEST_JUDGED and longer > RATIO * shorter


def without_loops(settings: SearchSettings) -> SearchSettings | None:
    """The second search of a target that loops: no 3-gram twice; None where the first one allowed none either."""
    if 1 <= settings.no_repeat_ngram <= 3:
        return None
    return replace(settings, sample=False, beam=max(settings.beam, settings.nbest), no_repeat_ngram=3)
