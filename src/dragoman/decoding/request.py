"""A validated batch for `beam_search` and `sample`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.decoding.processors import (
    ForcedPrefix,
    MinLength,
    NeverTokens,
    NoRepeatNgram,
    Processor,
    allowed_tokens,
)
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import DragomanError, UsageError

__all__ = ["SearchRequest", "nan_error"]


def nan_error(where: str) -> DragomanError:
    """Return the error for a model whose output is NaN."""
    return DragomanError(
        f"the model's probabilities at {where} are not numbers (NaN): its weights are damaged or the training "
        "diverged; load an earlier checkpoint"
    )


@dataclass(frozen=True)
class SearchRequest:
    """src: (B, S) ids.  src_mask: (B, S) True = token.  limits: B maximum target lengths, end of sentence included.

    prefixes: B lists of ids that the targets must start with.
    """

    src: Tensor
    src_mask: Tensor | None
    settings: SearchSettings
    limits: list[int]
    processors: list[Processor]
    prefixes: Sequence[Sequence[int]]

    @classmethod
    def build(
        cls, src: Tensor, src_mask: Tensor | None, settings: SearchSettings, prefix: Sequence[Sequence[int]] | None
    ) -> SearchRequest:
        """Compute limits and processors.  Raises UsageError unless there is one prefix per sentence."""
        count = src.size(0)
        if prefix is not None and len(prefix) != count:
            raise UsageError(f"{len(prefix)} forced prefixes for {count} sentences; give one per sentence, [] for none")
        forced = [0] * count if prefix is None else [len(tokens) for tokens in prefix]
        lengths = [src.size(1)] * count if src_mask is None else src_mask.sum(1).tolist()
        limits = [settings.limit(length, start) for length, start in zip(lengths, forced, strict=True)]
        processors: list[Processor] = [NeverTokens()]
        if settings.min_length:
            processors.append(MinLength(settings.min_length))
        if settings.no_repeat_ngram:
            processors.append(NoRepeatNgram(settings.no_repeat_ngram))
        if prefix is not None:
            processors.append(ForcedPrefix(prefix))
        return cls(src, src_mask, settings, limits, processors, prefix or [[]] * count)

    @property
    def device(self) -> torch.device:
        return self.src.device

    def restricted(self, log_probs: Tensor, tokens: Tensor, sentences: Tensor) -> Tensor:
        """Set log_probs (N, V) to -inf in place for tokens that may not follow tokens (N, T).

        sentences: (N,) index of each row's sentence.  Raises DragomanError for NaN.
        """
        if bool(log_probs[:, 0].isnan().any()):  # the softmax of a row is NaN everywhere or nowhere
            raise nan_error(f"target position {tokens.size(1) + 1}")
        possible = log_probs > float("-inf")  # excludes tokens outside of a shortlist
        allowed = allowed_tokens(self.processors, possible, tokens, sentences)
        return log_probs.masked_fill_(~allowed, float("-inf"))
