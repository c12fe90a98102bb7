"""One batch to search, checked and with its limits, as the policies take it."""

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

__all__ = ["SearchRequest", "not_numbers"]


def not_numbers(where: str) -> DragomanError:
    """What is raised for a model whose output is NaN."""
    return DragomanError(
        f"the model's probabilities at {where} are not numbers (NaN): its weights are damaged or the training "
        "diverged; load an earlier checkpoint"
    )


@dataclass(frozen=True)
class SearchRequest:
    """src: (B, S) ids; src_mask: (B, S) True = a word; limits: B target lengths, end of sentence included.

    prefixes: what each target must begin with, B lists of ids.
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
        """Raises UsageError when there is not one prefix a sentence."""
        count = src.size(0)
        if prefix is not None and len(prefix) != count:
            raise UsageError(f"{len(prefix)} forced prefixes for {count} sentences: give one each ([] = none)")
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
        """log_probs (N, V) with -inf where a token may not follow tokens (N, T), in place.

        At a sentence's limit the end of sentence is always allowed.  Raises DragomanError for NaN.
        """
        if bool(log_probs[:, 0].isnan().any()):  # a softmax has no NaN, or is NaN throughout
            raise not_numbers(f"target position {tokens.size(1) + 1}")
        possible = log_probs > float("-inf")  # more than the processors know: words that are on no list
        allowed = allowed_tokens(self.processors, possible, tokens, sentences)
        return log_probs.masked_fill_(~allowed, float("-inf"))
