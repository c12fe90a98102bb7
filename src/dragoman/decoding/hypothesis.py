"""The results of a search, complete and partial, and the score that ranks them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from dragoman.errors import DragomanError
from dragoman.tokenizers import EOS

Ids = Sequence[int]


@dataclass(frozen=True)
class Hypothesis:
    """A complete target.

    tokens: ids without BOS and EOS.  log_prob: sum of the natural log-probabilities of the tokens and the
    end of sentence, as in teacher forcing.  score: log_prob / length penalty.  token_log_probs: one per token and one
    for the end of sentence.  truncated: the length limit forced the end of sentence.
    """

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]
    truncated: bool


@dataclass(frozen=True)
class PartialHypothesis:
    """The best hypothesis after T steps of a search with K rows.

    tokens: T ids, including the end of sentence once it is reached.  token_log_probs: one per token.  rows: for each
    token, the row (0 to K - 1) of its step that produced it.  stable: length of the longest prefix shared by all
    hypotheses that may still win; these tokens will not change.
    """

    tokens: list[int]
    token_log_probs: list[float]
    rows: list[int]
    stable: int


TokenStream = Generator[PartialHypothesis, None, tuple[Hypothesis, PartialHypothesis]]
"""Yields the best unfinished hypothesis after each step; returns the best hypothesis in both forms."""


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6) ** alpha, with length in tokens including the end (Wu et al. 2016, equation 14)."""
    return float(((5 + length) / 6) ** alpha)


def complete(tokens: list[int], token_log_probs: list[float], alpha: float, truncated: bool) -> Hypothesis:
    """Build a hypothesis from tokens without the end of sentence and log-probabilities with it."""
    log_prob = math.fsum(token_log_probs)
    score = log_prob / length_penalty(len(token_log_probs), alpha)
    return Hypothesis(tokens, score, log_prob, token_log_probs, truncated)


def best(hypotheses: Sequence[Hypothesis], count: int) -> list[Hypothesis]:
    """Return the `count` hypotheses with the highest score, best first; ties keep their order."""
    if not hypotheses:
        raise DragomanError("no translation has a probability above 0: the model's output is not finite; retrain it")
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[:count]


def common_prefix(rows: Sequence[Ids]) -> int:
    """Return the length of the longest prefix that all rows share."""
    return sum(1 for _ in itertools.takewhile(lambda ids: len(set(ids)) == 1, zip(*rows, strict=False)))


def before_end(ids: Ids) -> Ids:
    """Return the ids before EOS; all ids of a source that has no end."""
    return ids[: ids.index(EOS)] if EOS in ids else ids
