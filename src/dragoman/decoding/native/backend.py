"""The native engine as a decoding backend, with the PyTorch backend as fallback for longer texts."""

from __future__ import annotations

import itertools
import logging
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dragoman.decoding.backend import DecodingBackend, Ids
from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.settings import SearchSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dragoman.decoding.native.stepper import EngineStepper
    from dragoman.decoding.pytorch.stream import TokenStream

__all__ = ["NativeBackend"]

_LOG = logging.getLogger(__name__)
_FORCED = SearchSettings(beam=1, alpha=0.0, max_extra=0)
"""Settings with which a search only scores its forced prefix and the end of sentence."""


class NativeBackend(DecodingBackend):
    """Decodes with an `Engine` on `threads` threads.

    load_fallback: loads the PyTorch backend of the same model, for texts that exceed the engine's positions.
    """

    device = "cpu"

    def __init__(
        self, engine: Engine, precision: str, threads: int, load_fallback: Callable[[], DecodingBackend]
    ) -> None:
        self.engine = engine
        self.precision = precision
        self.threads = threads
        self._load_fallback = load_fallback
        self._fallback: DecodingBackend | None = None
        self._warned = False

    @property
    def description(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        shortlist = f", {self.shortlist.description}" if self.shortlist else ""
        return f"native engine ({self.engine.build}), {self.precision}, {threads}{shortlist}"

    @property
    def fallback(self) -> DecodingBackend:
        """The PyTorch backend of the same model, loaded on first access."""
        if self._fallback is None:
            self._fallback = self._load_fallback()
            self._fallback.shortlist = self.shortlist
        return self._fallback

    def _fall_back(self) -> DecodingBackend:
        """Return the fallback; log a warning once, because it is slow."""
        if not self._warned:
            self._warned = True
            _LOG.warning(
                "texts that may exceed the %s positions of the native engine are decoded by the slower PyTorch "
                "backend; source, prefix, max_extra and min_length determine the length",
                f"{self.engine.positions:,}",
            )
        return self.fallback

    def search(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        limits = [settings.limit(len(s), len(p)) for s, p in zip(sources, prefixes, strict=True)]
        results: list[list[Hypothesis]] = [[] for _ in sources]
        for supported in (True, False):  # a limit is at least the length of its source
            indices = [i for i, limit in enumerate(limits) if (limit <= self.engine.positions) == supported]
            if not indices:
                continue
            some = [sources[i] for i in indices], [prefixes[i] for i in indices]
            if not supported:
                found = self._fall_back().search(*some, settings, batch_tokens)
            elif settings.sample:
                found = self._sample(*some, settings, batch_tokens)
            else:
                found = self._beam_search(*some, [limits[i] for i in indices], settings, batch_tokens)
            for index, hypotheses in zip(indices, found, strict=True):
                results[index] = hypotheses
        return results

    def _beam_search(
        self,
        sources: Sequence[Ids],
        prefixes: Sequence[Ids],
        limits: Sequence[int],
        settings: SearchSettings,
        batch_tokens: int,
    ) -> list[list[Hypothesis]]:
        shortlists = None
        if self.shortlist is not None:
            shortlists = [self.shortlist.of(s, p) for s, p in zip(sources, prefixes, strict=True)]
        return self.engine.search(
            sources, limits, settings, prefixes, self.threads, shortlists=shortlists, source_tokens=batch_tokens
        )

    def _sample(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        from dragoman.decoding.pytorch.backend import search_batches

        stepper = self._stepper()
        return search_batches(stepper, sources, prefixes, settings, batch_tokens, self.device, self.shortlist)

    def live(self, source: Ids, prefix: Ids, settings: SearchSettings) -> TokenStream:
        if settings.limit(len(source), len(prefix)) > self.engine.positions:
            return self._fall_back().live(source, prefix, settings)
        import torch

        from dragoman.decoding.pytorch.stepper import with_shortlist
        from dragoman.decoding.pytorch.stream import search_live

        src = torch.tensor([list(source)], dtype=torch.long)
        stepper = with_shortlist(self.shortlist, self._stepper(), [source], [prefix])
        return search_live(stepper, src, settings, prefix or None)

    def _stepper(self) -> EngineStepper:
        from dragoman.decoding.native.stepper import EngineStepper  # imports torch, which beam search does not need

        return EngineStepper(self.engine, self.threads)

    def align(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[NDArray[np.float32]]:
        if not self._supports(pairs):
            return self._fall_back().align(pairs, batch_tokens)
        shapes = [(len(tgt), len(src)) for src, tgt in pairs]
        offsets = list(itertools.accumulate((rows * columns for rows, columns in shapes), initial=0))
        weights = array("f", [0]) * offsets[-1]
        self._force(pairs, attention=weights)
        import numpy as np  # not imported by beam search

        flat = np.frombuffer(weights, np.float32)
        return [
            flat[begin:end].reshape(shape)
            for (begin, end), shape in zip(itertools.pairwise(offsets), shapes, strict=True)
        ]

    def score(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[list[float]]:
        if not self._supports(pairs):
            return self._fall_back().score(pairs, batch_tokens)
        return [hypotheses[0].token_log_probs for hypotheses in self._force(pairs)]

    def _supports(self, pairs: Sequence[tuple[Ids, Ids]]) -> bool:
        return max((max(len(src), len(tgt)) for src, tgt in pairs), default=0) <= self.engine.positions

    def _force(self, pairs: Sequence[tuple[Ids, Ids]], attention: array[float] | None = None) -> list[list[Hypothesis]]:
        """Decode the given targets: the limit leaves only the end of sentence after the forced prefix."""
        sources, prefixes = [src for src, _ in pairs], [list(tgt[:-1]) for _, tgt in pairs]
        limits = [len(prefix) + 1 for prefix in prefixes]
        return self.engine.search(sources, limits, _FORCED, prefixes, self.threads, attention=attention)
