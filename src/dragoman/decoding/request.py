"""A validated batch for `beam_search` and `sample`, with the tokens that its targets may contain.

Letters: B sentences, S source length, N rows, T tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from dragoman.decoding.hypothesis import Ids
from dragoman.decoding.settings import SearchSettings
from dragoman.errors import DragomanError, UsageError
from dragoman.tokenizers import BOS, EOS, PAD

__all__ = ["SearchRequest", "check_prefixes", "disallow_repeated_ngrams", "nan_error"]


def nan_error(where: str) -> DragomanError:
    """Return the error for a model whose output is NaN."""
    return DragomanError(
        f"the model's probabilities at {where} are not numbers (NaN): its weights are damaged or the training "
        "diverged; load an earlier checkpoint"
    )


def check_prefixes(prefixes: Sequence[Ids]) -> None:
    """Raise UsageError if a forced prefix contains padding, begin or end of sentence."""
    for index, prefix in enumerate(prefixes, start=1):
        if {PAD, BOS, EOS} & set(prefix):
            raise UsageError(f"forced prefix of sentence {index}: {list(prefix)} contains special ids; omit them")


@dataclass(frozen=True)
class SearchRequest:
    """src: (B, S) ids.  src_mask: (B, S) True = token.  limits: B maximum target lengths, end of sentence included.

    prefixes: B lists of ids that the targets must start with.
    """

    src: Tensor
    src_mask: Tensor | None
    settings: SearchSettings
    limits: list[int]
    prefixes: Sequence[Ids]

    @classmethod
    def build(
        cls, src: Tensor, src_mask: Tensor | None, settings: SearchSettings, prefixes: Sequence[Ids] | None
    ) -> SearchRequest:
        """Compute the limits.  Raises UsageError for an invalid prefix, or unless there is one per sentence."""
        count = src.size(0)
        prefixes = [[]] * count if prefixes is None else prefixes
        if len(prefixes) != count:
            raise UsageError(
                f"{len(prefixes)} forced prefixes for {count} sentences; give one per sentence, [] for none"
            )
        check_prefixes(prefixes)
        lengths = [src.size(1)] * count if src_mask is None else src_mask.sum(1).tolist()
        limits = [settings.limit(length, len(prefix)) for length, prefix in zip(lengths, prefixes, strict=True)]
        return cls(src, src_mask, settings, limits, prefixes)

    @cached_property
    def _longest_prefix(self) -> int:
        return max(map(len, self.prefixes), default=0)

    def restricted(self, log_probs: Tensor, tokens: Tensor, sentences: Tensor) -> Tensor:
        """Set log_probs (N, V) to -inf in place for tokens that may not follow tokens (N, T), without renormalizing.

        A score therefore equals the score of teacher forcing.  sentences: (N,) index of each row's sentence.  Raises
        DragomanError for NaN.
        """
        if bool(log_probs[:, 0].isnan().any()):  # the softmax of a row is NaN everywhere or nowhere
            raise nan_error(f"target position {tokens.size(1) + 1}")
        possible = log_probs > float("-inf")  # excludes tokens outside of a shortlist
        return log_probs.masked_fill_(~self.allowed(possible, tokens, sentences), float("-inf"))

    def allowed(self, possible: Tensor, tokens: Tensor, sentences: Tensor) -> Tensor:
        """Set tokens of possible (N, V) that may not follow to False, in place; a row without any allows the end."""
        length, settings = tokens.size(1), self.settings
        possible[:, [PAD, BOS]] = False
        if length < settings.min_length:
            possible[:, EOS] = False
        if settings.no_repeat_ngram:
            disallow_repeated_ngrams(possible, tokens, settings.no_repeat_ngram)
        if length < self._longest_prefix:
            for row, sentence in enumerate(sentences.tolist()):
                if length < len(self.prefixes[sentence]):
                    possible[row] = False
                    possible[row, self.prefixes[sentence][length]] = True
        without_end = (~possible[:, EOS]).nonzero()[:, 0]
        possible[without_end, EOS] = ~possible[without_end].any(dim=1)
        return possible


def disallow_repeated_ngrams(allowed: Tensor, tokens: Tensor, n: int) -> None:
    """Set tokens of allowed (N, V) that would repeat an n-gram of tokens (N, T) to False (Paulus et al. 2017, 2.5)."""
    if tokens.size(1) < n:
        return
    ngrams = tokens.unfold(1, n, 1)  # (N, T - n + 1, n)
    context = tokens[:, tokens.size(1) - (n - 1) :]  # (N, n - 1)
    rows, starts = (ngrams[..., : n - 1] == context[:, None]).all(-1).nonzero(as_tuple=True)
    allowed[rows, ngrams[rows, starts, n - 1]] = False
