"""Logits processors: the tokens that are allowed next.

Log-probabilities are not renormalized, so that a score equals the score of teacher forcing.

Letters: N rows, T tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from dragoman.data.tokenizer import BOS, EOS, PAD
from dragoman.errors import UsageError

__all__ = ["ForcedPrefix", "MinLength", "NeverTokens", "NoRepeatNgram", "Processor", "allowed_tokens"]


class Processor(Protocol):
    """A rule that disallows tokens."""

    def restrict(self, allowed: Tensor, tokens: Tensor, sentences: Tensor) -> None:
        """Set entries of allowed (N, V) to False.  tokens: (N, T) so far.  sentences: (N,) the sentence of each row."""


class NeverTokens:
    """Disallow padding and the beginning of sentence."""

    def restrict(self, allowed: Tensor, tokens: Tensor, sentences: Tensor) -> None:
        allowed[:, [PAD, BOS]] = False


class MinLength:
    """Disallow the end of sentence before `length` tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    def restrict(self, allowed: Tensor, tokens: Tensor, sentences: Tensor) -> None:
        if tokens.size(1) < self.length:
            allowed[:, EOS] = False


class NoRepeatNgram:
    """Disallow a second occurrence of an n-gram of `size` tokens in a target (Paulus et al. 2017, 2.5)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def restrict(self, allowed: Tensor, tokens: Tensor, sentences: Tensor) -> None:
        n = self.size
        if tokens.size(1) < n:
            return
        ngrams = tokens.unfold(1, n, 1)  # (N, T - n + 1, n)
        context = tokens[:, tokens.size(1) - (n - 1) :]  # (N, n - 1)
        rows, starts = (ngrams[..., : n - 1] == context[:, None]).all(-1).nonzero(as_tuple=True)
        allowed[rows, ngrams[rows, starts, n - 1]] = False


class ForcedPrefix:
    """Allow only the next token of each sentence's prefix.  It comes last, because it also allows tokens."""

    def __init__(self, prefixes: Sequence[Sequence[int]]) -> None:
        for index, prefix in enumerate(prefixes, start=1):
            if {PAD, BOS, EOS} & set(prefix):
                raise UsageError(f"forced prefix of sentence {index}: {list(prefix)} contains special ids; omit them")
        self.prefixes = prefixes
        self.longest = max(map(len, prefixes), default=0)

    def restrict(self, allowed: Tensor, tokens: Tensor, sentences: Tensor) -> None:
        position = tokens.size(1)
        if position >= self.longest:
            return
        for row, sentence in enumerate(sentences.tolist()):
            if position < len(self.prefixes[sentence]):
                allowed[row] = False
                allowed[row, self.prefixes[sentence][position]] = True


def allowed_tokens(processors: Sequence[Processor], possible: Tensor, tokens: Tensor, sentences: Tensor) -> Tensor:
    """Apply the processors to possible (N, V), True = allowed; rows with no token left allow the end of sentence."""
    allowed = possible.clone()
    for processor in processors:
        processor.restrict(allowed, tokens, sentences)
    without_end = (~allowed[:, EOS]).nonzero()[:, 0]
    allowed[without_end, EOS] = ~allowed[without_end].any(dim=1)
    return allowed
