"""Decoding of a batch, and of one sentence as a stream of partial hypotheses.

Letters: B sentences, S source length, K rows of a stream's search (1 without a beam), T tokens so far.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from dragoman.data.batching import collate_source
from dragoman.decoding.hypothesis import Hypothesis, Ids, PartialHypothesis, TokenStream, common_prefix
from dragoman.decoding.pytorch.beam import beam_search
from dragoman.decoding.pytorch.sampling import sample
from dragoman.decoding.pytorch.stepper import SearchRequest, State, Stepper
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import UsageError

Result = TypeVar("Result")


def generate(
    stepper: Stepper[State],
    src: Tensor,
    src_mask: Tensor | None,
    settings: SearchSettings,
    prefix: Sequence[Ids] | None = None,
) -> list[list[Hypothesis]]:
    """Return B lists of `settings.nbest` hypotheses, best first, each ending with the end of sentence.

    src: (B, S) token ids with end of sentence, padded on the right.  src_mask: (B, S) True = token, False = padding;
    None = no padding.  prefix: B lists of ids that the targets must start with.  Raises UsageError for an invalid
    prefix, DragomanError if the model's output is not finite.
    """
    if src.size(0) == 0:
        return []
    request = SearchRequest.build(src, src_mask, settings, prefix)
    if settings.sample or settings.beam == 1:
        return drain(sample(stepper, request))
    return drain(beam_search(stepper, request))


def drain(steps: Generator[Any, None, Result]) -> Result:
    """Run a search to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def padded(rows: Sequence[Ids], device: torch.device | str) -> tuple[Tensor, Tensor | None]:
    """Return ids (B, n) and their mask (None = no padding) on a device."""
    ids, mask = collate_source(rows)
    return ids.to(device), None if mask is None else mask.to(device)


def stream_tokens(stepper: Stepper[State], src: Tensor, settings: SearchSettings, prefix: Ids = ()) -> TokenStream:
    """Run the search of `generate` for src (1, S) step by step; prefix: ids that the target must start with.

    The steps hold no thread-local state, so each may run in a different thread.  Raises UsageError if `nbest` is not 1,
    and the errors of `generate`.
    """
    if settings.nbest != 1:
        raise UsageError(f"nbest = {settings.nbest}: a stream has one hypothesis; accepted: nbest = 1")
    request = SearchRequest.build(src, None, settings, [prefix])
    if settings.sample or settings.beam == 1:
        return _stream_samples(stepper, request)
    return _stream_beams(stepper, request)


def _stream_samples(stepper: Stepper[State], request: SearchRequest) -> TokenStream:
    for samples in sample(stepper, request):
        tokens = samples.tokens[0].tolist()
        partial = PartialHypothesis(tokens, samples.token_log_probs[0].tolist(), [0] * len(tokens), len(tokens))
        if not bool(samples.ended[0]):
            yield partial
    return samples.hypothesis(0, request.settings.alpha), partial


def _stream_beams(stepper: Stepper[State], request: SearchRequest) -> TokenStream:
    rows: list[list[int]] = [[]] * request.settings.beam  # of each beam's tokens
    finished: list[tuple[Hypothesis, PartialHypothesis]] = []
    for step in beam_search(stepper, request):
        tokens, token_log_probs = step.beams.tokens[0].tolist(), step.beams.token_log_probs[0].tolist()
        rows = [[*rows[origin], origin] for origin in step.origins[0].tolist()]
        for _, beam, hypothesis in step.finished:
            path = PartialHypothesis(tokens[beam], token_log_probs[beam], rows[beam], len(tokens[beam]))
            finished.append((hypothesis, path))
        log_probs = step.beams.log_probs[0].tolist()
        unfinished = step.extended[0].nonzero()[:, 0].tolist()
        if unfinished:
            # The other finished hypotheses have lost to the best one.
            rivals = [_best(finished)[0].tokens] if finished else []
            stable = common_prefix([*(tokens[beam] for beam in unfinished), *rivals])
            beam = max(unfinished, key=lambda beam: log_probs[beam])
            yield PartialHypothesis(tokens[beam], token_log_probs[beam], rows[beam], stable)
    return _best(finished)


def _best(finished: Sequence[tuple[Hypothesis, PartialHypothesis]]) -> tuple[Hypothesis, PartialHypothesis]:
    return max(finished, key=lambda pair: pair[0].score)
