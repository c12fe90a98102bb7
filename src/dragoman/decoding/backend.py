"""The interface between a pipeline and the code that runs a model: search, scoring and alignment."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dragoman.decoding.hypothesis import Hypothesis, Ids, TokenStream
from dragoman.decoding.phrases import Phrases
from dragoman.decoding.settings import SearchSettings
from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from dragoman.decoding.pytorch.stepper import Stepper

BATCH_TOKENS = 4000
"""Padded source tokens times rows in a batch, if the caller names no number."""


class DecodingBackend(ABC):
    """A loaded model: in PyTorch (`TorchBackend`), in the native engine (`NativeBackend`), or an ensemble of these."""

    device: torch.device | str
    shortlist: Shortlist | None = None
    """Target tokens that a search may use for a sentence; None = all.  `score` and `align` always use all."""
    load_scorer: Callable[[], DecodingBackend] | None = None
    """Loads the backend that scores in float32; None if this backend scores itself, because it is in float32 or its
    reduced precision was requested."""

    @property
    def max_length(self) -> float:
        """Longest target in tokens that `_search` and `stepper` support; longer ones are left to `fallback`."""
        return math.inf

    @cached_property
    def scorer(self) -> DecodingBackend:
        """The backend whose `score` is returned to users: this one, or the same model in float32, loaded once."""
        return self if self.load_scorer is None else self.load_scorer()

    @property
    @abstractmethod
    def description(self) -> str:
        """The backend, its precision and device, and why a faster one is not used."""

    def search(
        self,
        sources: Sequence[Ids],
        prefixes: Sequence[Ids],
        settings: SearchSettings,
        batch_tokens: int | None,
        phrases: Sequence[Phrases | None] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return `settings.nbest` hypotheses per source, best first.

        sources: ids with the end of sentence.  prefixes: ids that each target must start with.  batch_tokens: maximum
        of padded source tokens times rows in a batch; None = as the backend chooses.  phrases: of each target, None =
        none; the length limits are extended by their tokens.  Raises UsageError for phrases together with sampling.
        """
        if phrases is None:
            phrases = [None] * len(sources)
        if settings.sample and any(phrases):
            raise UsageError("phrases require beam search; use sample = False")
        groups: dict[tuple[bool, bool], list[int]] = {}
        for i, (src, prefix, own) in enumerate(zip(sources, prefixes, phrases, strict=True)):
            supported = target_limit(settings, src, prefix, own) <= self.max_length
            groups.setdefault((supported, own is not None), []).append(i)
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for (supported, constrained), indices in groups.items():
            backend = self if supported else self.fallback()
            selected = [sources[i] for i in indices], [prefixes[i] for i in indices]
            if constrained:
                own_phrases = [own for i in indices if (own := phrases[i]) is not None]
                results = backend._search_phrases(*selected, settings, own_phrases)
            else:
                results = backend._search(*selected, settings, batch_tokens)
            for index, hypotheses in zip(indices, results, strict=True):
                found[index] = hypotheses
        return found

    def _search_phrases(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, phrases: Sequence[Phrases]
    ) -> list[list[Hypothesis]]:
        """As `search`, for targets of up to `max_length` tokens that all have phrases, one after the other."""
        from dragoman.decoding.pytorch.constrained import constrained_search
        from dragoman.decoding.pytorch.generate import padded
        from dragoman.decoding.pytorch.stepper import SearchRequest, with_shortlist

        found = []
        for source, prefix, own in zip(sources, prefixes, phrases, strict=True):
            kept = [*prefix, *(token for ids in own.ids for token in ids)]
            stepper = with_shortlist(self.shortlist, self.stepper(), [source], [kept])
            request = SearchRequest.build(*padded([source], self.device), settings, [prefix])
            request = replace(request, limits=[target_limit(settings, source, prefix, own)])
            found.append(constrained_search(stepper, request, own))
        return found

    def _search(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, batch_tokens: int | None
    ) -> list[list[Hypothesis]]:
        """As `search`, for targets of up to `max_length` tokens, in batches of sources of similar length."""
        from dragoman.decoding.pytorch.generate import generate, padded
        from dragoman.decoding.pytorch.stepper import with_shortlist

        stepper, width = self.stepper(), settings.nbest if settings.sample else settings.beam
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for batch in batches_within([max(1, len(source)) * width for source in sources], batch_tokens or BATCH_TOKENS):
            batch_sources, batch_prefixes = [sources[i] for i in batch], [prefixes[i] for i in batch]
            restricted = with_shortlist(self.shortlist, stepper, batch_sources, batch_prefixes)
            src, mask = padded(batch_sources, self.device)
            hypotheses = generate(restricted, src, mask, settings, batch_prefixes)
            for index, row in zip(batch, hypotheses, strict=True):
                found[index] = row
        return found

    def stream(self, source: Ids, prefix: Ids, settings: SearchSettings) -> TokenStream:
        """Search one source step by step (`stream_tokens`)."""
        import torch

        from dragoman.decoding.pytorch.generate import stream_tokens
        from dragoman.decoding.pytorch.stepper import with_shortlist

        if settings.limit(len(source), len(prefix)) > self.max_length:
            return self.fallback().stream(source, prefix, settings)
        stepper = with_shortlist(self.shortlist, self.stepper(), [source], [prefix])
        src = torch.tensor([list(source)], dtype=torch.long, device=self.device)
        return stream_tokens(stepper, src, settings, prefix)

    @abstractmethod
    def stepper(self) -> Stepper[Any]:
        """Return the model as a `Stepper`, in evaluation mode and without the shortlist."""

    @abstractmethod
    def to_torch(self) -> DecodingBackend:
        """Return the PyTorch backend of the same model with the same shortlist; an ensemble of them for an ensemble."""

    def fallback(self) -> DecodingBackend:
        """Return the backend for targets longer than `max_length`."""
        return self.to_torch()

    @abstractmethod
    def align(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[NDArray[np.float32]]:
        """Return the cross-attention weights (T, S) of each pair, averaged over heads and layers; each row sums to 1.

        pairs: source and target ids, both with the end of sentence.  Raises UsageError if the model has no
        cross-attention.
        """

    @abstractmethod
    def score(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[list[float]]:
        """Return the natural log-probability of each target token, for pairs as in `align`."""


def target_limit(settings: SearchSettings, source: Ids, prefix: Ids, phrases: Phrases | None) -> int:
    """Return the maximum target length, with its end: that of the settings, and room for all phrases."""
    return settings.limit(len(source), len(prefix)) + (phrases.total if phrases else 0)


def batches_within(sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield batches of indices of similar sizes, largest first; count times largest size is at most `budget`.

    An item larger than the budget forms its own batch.
    """
    batch: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if batch and sizes[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
