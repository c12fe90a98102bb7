"""What a search gives back, and the score it is ranked by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.errors import DragomanError

__all__ = ["Hypothesis", "best", "complete", "length_penalty"]


@dataclass(frozen=True)
class Hypothesis:
    """One complete target.

    tokens: ids without begin and end of sentence.  log_prob: sum of the natural log-probabilities of the tokens and the
    end of sentence, as teacher forcing gives it.  score: log_prob / length penalty.  token_log_probs: one a token and
    one for the end.  truncated: the end was forced by the length limit.
    """

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]
    truncated: bool


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6) ** alpha, length in tokens with the end of sentence (Wu et al. 2016, equation 14)."""
    return float(((5 + length) / 6) ** alpha)


def complete(tokens: list[int], token_log_probs: list[float], alpha: float, truncated: bool) -> Hypothesis:
    """The hypothesis of `tokens` (without end of sentence) and their log-probabilities (with it)."""
    log_prob = math.fsum(token_log_probs)
    score = log_prob / length_penalty(len(token_log_probs), alpha)
    return Hypothesis(tokens, score, log_prob, token_log_probs, truncated)


def best(pool: Sequence[Hypothesis], count: int) -> list[Hypothesis]:
    """The `count` best by score, best first; equal scores keep their order."""
    if not pool:
        raise DragomanError("no translation has a probability above 0: the model's output is not finite; retrain it")
    return sorted(pool, key=lambda hypothesis: -hypothesis.score)[:count]
