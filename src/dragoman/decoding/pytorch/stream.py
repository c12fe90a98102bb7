"""The search of one sentence, a step at a time, for whoever wants to watch.

The steps are those of `greedy`, `sample` and `beam_search`, made of the same parts: the outcome is the same to the bit.

Letters: K rows that are searched (1 without a beam), T tokens so far.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.data.tokenizer import BOS
from dragoman.decoding.hypothesis import Hypothesis, best
from dragoman.decoding.pytorch.beam import Beams, Pool, grow, keep
from dragoman.decoding.pytorch.sampling import Choose, SamplingState, advance, draw, hypothesis_of, uniforms_of
from dragoman.decoding.pytorch.stepper import State, Stepper
from dragoman.decoding.request import SearchRequest
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError

__all__ = ["PartialHypothesis", "TokenStream", "stream_tokens"]


@dataclass(frozen=True)
class PartialHypothesis:
    """A hypothesis and how it came about.

    tokens: T ids, the end of sentence included where it is reached.  token_log_probs: one a token.  rows: for each
    token, in which of the K rows of its step the model said it.  stable: how many of the tokens every hypothesis that
    may still win begins with, so that they stay.
    """

    tokens: list[int]
    token_log_probs: list[float]
    rows: list[int]
    stable: int


TokenStream = Generator[PartialHypothesis, None, tuple[Hypothesis, PartialHypothesis]]
"""After each step the best hypothesis that goes on; in the end (its return value) the best of all and its path."""


def stream_tokens(
    stepper: Stepper[State], src: Tensor, settings: SearchSettings, prefix: Sequence[int] | None = None
) -> TokenStream:
    """What `generate` finds for src (1, S), step by step; prefix: ids that the target must start with.

    No step leaves anything behind in the thread, so each may be taken in another one.  Raises UsageError for an nbest
    other than 1, and as `generate` does.
    """
    if settings.nbest != 1:
        raise UsageError(f"nbest = {settings.nbest}: one hypothesis can be watched; accepted: nbest=1")
    task = SearchRequest.build(src, None, settings, None if prefix is None else [prefix])
    if settings.sample or settings.beam == 1:
        return _one_by_one(stepper, task)
    return _with_beam(stepper, task)


def _one_by_one(stepper: Stepper[State], task: SearchRequest) -> TokenStream:
    choose = _choice(task)
    with torch.no_grad():
        state = stepper.start(task.src, None, beams=1, max_len=max(task.limits))
    walks = SamplingState.first(1, task.device)
    inputs = walks.rows.new_full((1,), BOS)
    while True:
        with torch.no_grad():
            walks = advance(walks, stepper.step(inputs, state), task, 1, choose)
        tokens = walks.tokens[0].tolist()
        path = PartialHypothesis(tokens, walks.token_log_probs[0].tolist(), [0] * len(tokens), len(tokens))
        if bool(walks.ended[0]):
            return hypothesis_of(walks, 0, task.settings.alpha), path
        yield path
        inputs = walks.tokens[:, -1]


def _choice(task: SearchRequest) -> Choose:
    if not task.settings.sample:
        return lambda log_probs, rows, position: log_probs.argmax(1)
    uniforms = uniforms_of(task, 1).to(task.device)
    return lambda log_probs, rows, position: draw(log_probs, uniforms[rows, position], task.settings)


def _with_beam(stepper: Stepper[State], task: SearchRequest) -> TokenStream:
    width = task.settings.beam
    with torch.no_grad():
        state = stepper.start(task.src, None, beams=width, max_len=max(task.limits))
    beams, pool = Beams.first(1, width, task.device), Pool(task)
    rows = beams.tokens[0]  # (K, T), of each beam's tokens
    ended: list[PartialHypothesis] = []  # of the pool's hypotheses, in its order
    while beams.sentences.numel():
        with torch.no_grad():
            step = grow(beams, stepper.step(beams.inputs(), state), task)
            origins = step.origins[0]
            rows = torch.cat([rows[origins], origins[:, None]], dim=1)
            left = pool.collect(step)
            complete = step.grown.log_probs.isfinite() & ~left.log_probs.isfinite()  # (1, K)
            ended += [
                _path(step.grown, rows, beam, beams.tokens.size(2) + 1) for beam in complete[0].nonzero()[:, 0].tolist()
            ]
            beams = keep(left, state, step.origins, pool.can_improve(left))
        if beams.sentences.numel():
            alive = beams.tokens[0][beams.log_probs[0].isfinite()].tolist()
            rivals = [h.tokens for h in best(pool.found[0], 1)] if pool.found[0] else []  # the others have lost to it
            yield _path(beams, rows, int(beams.log_probs[0].argmax()), _in_common([*alive, *rivals]))
    (first,) = best(pool.found[0], 1)
    place = next(i for i, hypothesis in enumerate(pool.found[0]) if hypothesis is first)
    return first, ended[place]


def _path(beams: Beams, rows: Tensor, beam: int, stable: int) -> PartialHypothesis:
    return PartialHypothesis(
        beams.tokens[0, beam].tolist(), beams.token_log_probs[0, beam].tolist(), rows[beam].tolist(), stable
    )


def _in_common(hypotheses: Sequence[Sequence[int]]) -> int:
    """How many tokens they all begin with."""
    return sum(1 for _ in itertools.takewhile(lambda words: len(set(words)) == 1, zip(*hypotheses, strict=False)))
