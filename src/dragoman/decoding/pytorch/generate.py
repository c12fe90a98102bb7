"""Batch decoding: from source ids to hypotheses."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from dragoman.data.batching import batches_within, collate_source
from dragoman.decoding.hypothesis import Hypothesis, Ids
from dragoman.decoding.pytorch.beam import beam_search
from dragoman.decoding.pytorch.sampling import sample
from dragoman.decoding.pytorch.stepper import State, Stepper, with_shortlist
from dragoman.decoding.request import SearchRequest
from dragoman.decoding.settings import SearchSettings
from dragoman.decoding.shortlist import Shortlist

__all__ = ["drain", "generate", "generate_batches", "padded"]

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


def generate_batches(
    stepper: Stepper[State],
    sources: Sequence[Ids],
    prefixes: Sequence[Ids],
    settings: SearchSettings,
    batch_tokens: int,
    device: torch.device | str,
    shortlist: Shortlist | None = None,
) -> list[list[Hypothesis]]:
    """Run `generate` on batches of sources of similar length (`DecodingBackend.search`)."""
    width = settings.nbest if settings.sample else settings.beam
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for batch in batches_within([max(1, len(source)) * width for source in sources], batch_tokens):
        batch_sources, batch_prefixes = [sources[i] for i in batch], [prefixes[i] for i in batch]
        src, mask = padded(batch_sources, device)
        restricted = with_shortlist(shortlist, stepper, batch_sources, batch_prefixes)
        hypotheses = generate(restricted, src, mask, settings, batch_prefixes)
        for index, row in zip(batch, hypotheses, strict=True):
            found[index] = row
    return found


def padded(rows: Sequence[Ids], device: torch.device | str) -> tuple[Tensor, Tensor | None]:
    """Return ids (B, n) and their mask (None = no padding) on a device."""
    ids, mask = collate_source(rows)
    return ids.to(device), None if mask is None else mask.to(device)
