"""Searches that compute the same numbers in two ways: equal results, but for words that are all but equally probable.

Floating-point sums depend on their order, and the order on the processor, so such words may change places in float32.
What a search finds then is what it finds by itself once the weights are moved by about as much as rounding moves them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
import torch

from dragoman.decoding import Hypothesis
from dragoman.models.seq2seq import Model

Found = TypeVar("Found")
_ROUNDING = 1e-6
_TRIES = 16


def moved(model: Model, seed: int) -> Model:
    """A copy whose every weight is another by about one part in a million."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1 + _ROUNDING * torch.randn(weight.shape, generator=generator).to(weight))
    return other


def assert_same(found: Sequence[Hypothesis], wanted: Sequence[Hypothesis]) -> None:
    """The same tokens, and the numbers of a search that computes in float64 to 1e-5."""
    assert [(h.tokens, h.truncated) for h in found] == [(h.tokens, h.truncated) for h in wanted]
    for mine, other in zip(found, wanted, strict=True):
        assert mine.score == pytest.approx(other.score, abs=1e-5)
        assert mine.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-5)


def same_hypotheses(ours: Sequence[Hypothesis], theirs: Sequence[Hypothesis]) -> bool:
    """The same tokens, and every number to 1e-4."""
    return len(ours) == len(theirs) and all(
        one.tokens == other.tokens
        and one.truncated == other.truncated
        and one.score == pytest.approx(other.score, abs=1e-4)
        and one.log_prob == pytest.approx(other.log_prob, abs=2e-4)
        and one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)
        for one, other in zip(ours, theirs, strict=True)
    )


def assert_same_search(
    ours: Sequence[Found],
    search: Callable[[Model], Sequence[Found]],
    model: Model,
    same: Callable[[Found, Found], bool],
) -> None:
    """`ours`, one result per sentence, are what `search` finds with `model`, at most one in ten with a moved one.

    same: whether two results of a sentence are equal, numbers to a tolerance.
    """
    theirs = search(model)
    assert len(ours) == len(theirs)
    left = [i for i in range(len(ours)) if not same(ours[i], theirs[i])]
    shown = "\n".join(f"sentence {i}: {ours[i]}\n  instead of {theirs[i]}" for i in left)
    assert len(left) <= max(1, len(ours) // 10), shown
    for seed in range(_TRIES):
        if not left:
            return
        near = search(moved(model, seed))
        left = [i for i in left if not same(ours[i], near[i])]
    assert not left, f"no near tie, so another result:\n{shown}"
