"""From source ids to target ids: the one way into the search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.search.beam import beam_search
from dragoman.search.hypothesis import Hypothesis
from dragoman.search.sample import greedy, sample
from dragoman.search.settings import SearchSettings
from dragoman.search.stepper import State, Stepper
from dragoman.search.task import Task

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
    task = Task.build(src, src_mask, settings, prefix)
    with torch.no_grad():  # not inference_mode: what a model caches here must stay usable in training
        if settings.sample:
            return sample(stepper, task)
        return greedy(stepper, task) if settings.beam == 1 else beam_search(stepper, task)
