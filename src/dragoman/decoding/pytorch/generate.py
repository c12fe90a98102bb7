"""From source ids to target ids: the one way into the search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.pytorch.beam import beam_search
from dragoman.decoding.pytorch.sampling import greedy, sample
from dragoman.decoding.pytorch.stepper import State, Stepper
from dragoman.decoding.request import SearchRequest
from dragoman.decoding.settings import SearchSettings

__all__ = ["generate"]


def generate(
    stepper: Stepper[State],
    src: Tensor,
    src_mask: Tensor | None,
    settings: SearchSettings,
    prefix: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """B lists of `settings.nbest` hypotheses, best first, each ending with the end of sentence.

    src: (B, S) token ids with end of sentence, padded on the right; src_mask: (B, S) True = a word, None = nothing is
    padded; prefix: B lists of target ids that the targets must start with.  Raises UsageError for prefixes that cannot
    be, DragomanError when the model's output is not finite.
    """
    if src.size(0) == 0:
        return []
    task = SearchRequest.build(src, src_mask, settings, prefix)
    with torch.no_grad():  # not inference_mode: what a model caches here must stay usable in training
        if settings.sample:
            return sample(stepper, task)
        return greedy(stepper, task) if settings.beam == 1 else beam_search(stepper, task)
