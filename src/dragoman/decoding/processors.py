"""Which tokens may come next: each processor crosses some out.

Log-probabilities are never renormalised, so a score stays the score that teacher forcing gives.

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
    """Crosses tokens out."""

    def restrict(self, allowed: Tensor, tokens: Tensor, sentences: Tensor) -> None:
        """Write False into allowed (N, V), given the tokens so far (N, T) and each row's sentence (N,)."""


class NeverTokens:
    """Padding and begin of sentence are no words."""

    def restrict(self, allowed: Tensor, tokens: Tensor, sentences: Tensor) -> None:
        allowed[:, [PAD, BOS]] = False


class MinLength:
    """No end of sentence before `length` tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    def restrict(self, allowed: Tensor, tokens: Tensor, sentences: Tensor) -> None:
        if tokens.size(1) < self.length:
            allowed[:, EOS] = False


class NoRepeatNgram:
    """No n-gram of `size` tokens twice in one target (Paulus et al. 2017, 2.5)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def restrict(self, allowed: Tensor, tokens: Tensor, sentences: Tensor) -> None:
        n = self.size
        if tokens.size(1) < n:
            return
        ngrams = tokens.unfold(1, n, 1)  # (N, T - n + 1, n)
        context = tokens[:, tokens.size(1) - (n - 1) :]  # (N, n - 1)
        rows, places = (ngrams[..., : n - 1] == context[:, None]).all(-1).nonzero(as_tuple=True)
        allowed[rows, ngrams[rows, places, n - 1]] = False


class ForcedPrefix:
    """Each sentence starts with its own given tokens; this one comes last, because it also allows."""

    def __init__(self, prefixes: Sequence[Sequence[int]]) -> None:
        for place, prefix in enumerate(prefixes):
            if {PAD, BOS, EOS} & set(prefix):
                raise UsageError(f"forced prefix of sentence {place + 1}: {list(prefix)} holds padding, begin or end")
        self.prefixes = prefixes
        self.longest = max(map(len, prefixes), default=0)

    def restrict(self, allowed: Tensor, tokens: Tensor, sentences: Tensor) -> None:
        place = tokens.size(1)
        if place >= self.longest:
            return
        for row, sentence in enumerate(sentences.tolist()):
            if place < len(self.prefixes[sentence]):
                allowed[row] = False
                allowed[row, self.prefixes[sentence][place]] = True


def allowed_tokens(processors: Sequence[Processor], possible: Tensor, tokens: Tensor, sentences: Tensor) -> Tensor:
    """(N, V) True = may come next, of what is possible (N, V); the end of sentence where nothing else is left."""
    allowed = possible.clone()
    for processor in processors:
        processor.restrict(allowed, tokens, sentences)
    endless = (~allowed[:, EOS]).nonzero()[:, 0]
    allowed[endless, EOS] = ~allowed[endless].any(dim=1)
    return allowed
