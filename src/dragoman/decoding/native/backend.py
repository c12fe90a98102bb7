"""The engine as a translator uses it; what it does not do itself is done by the plain path."""

from __future__ import annotations

import itertools
import logging
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dragoman.decoding.backend import DecodingBackend
from dragoman.decoding.hypothesis import Hypothesis, Ids
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.settings import SearchSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dragoman.decoding.native.stepper import EngineStepper

__all__ = ["NativeBackend"]

_LOG = logging.getLogger(__name__)
_FORCED = SearchSettings(beam=1, alpha=0.0, max_extra=0)


class NativeBackend(DecodingBackend):
    """An engine and how many threads it gets.

    load_torch: loads the PyTorch backend of the same model, used for texts longer than the packed model's positions.
    """

    def __init__(self, engine: Engine, precision: str, threads: int, load_torch: Callable[[], DecodingBackend]) -> None:
        self.engine = engine
        self.precision = precision
        self.threads = threads
        self._load_torch = load_torch
        self._torch: DecodingBackend | None = None
        self._warned = False

    device = "cpu"

    @property
    def description(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        listed = f", {self.shortlist.description}" if self.shortlist else ""
        return f"native engine ({self.engine.build}), {self.precision}, {threads}{listed}"

    @property
    def max_length(self) -> float:
        return self.engine.positions

    def to_torch(self) -> DecodingBackend:
        """Return the PyTorch backend of the same model, loaded by the first call."""
        if self._torch is None:
            self._torch = self._load_torch()
            self._torch.shortlist = self.shortlist
        return self._torch

    def fallback(self) -> DecodingBackend:
        if not self._warned:
            self._warned = True
            _LOG.warning(
                "some texts may become longer than the %s tokens of the packed model; the PyTorch backend is used for "
                "them, which is slower (source, prefix, max_extra and min_length determine the length)",
                f"{self.engine.positions:,}",
            )
        return self.to_torch()

    def _search(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        if settings.sample:
            return super()._search(sources, prefixes, settings, batch_tokens)
        limits = [settings.limit(len(s), len(p)) for s, p in zip(sources, prefixes, strict=True)]
        lists = None
        if self.shortlist is not None:
            lists = [self.shortlist.of(s, p) for s, p in zip(sources, prefixes, strict=True)]
        return self.engine.search(
            sources, limits, settings, prefixes, self.threads, shortlists=lists, source_tokens=batch_tokens
        )

    def align(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[NDArray[np.float32]]:
        if max((max(len(src), len(tgt)) for src, tgt in pairs), default=0) > self.engine.positions:
            return self.fallback().align(pairs, batch_tokens)
        sizes = [(len(tgt), len(src)) for src, tgt in pairs]
        starts = list(itertools.accumulate((rows * columns for rows, columns in sizes), initial=0))
        weights = array("f", [0]) * starts[-1]
        targets = [list(tgt[:-1]) for _, tgt in pairs]
        limits = [rows for rows, _ in sizes]
        self.engine.search([src for src, _ in pairs], limits, _FORCED, targets, self.threads, attention=weights)
        import numpy as np  # here, so that translating starts without it

        whole = np.frombuffer(weights, np.float32)
        return [whole[at:end].reshape(size) for (at, end), size in zip(itertools.pairwise(starts), sizes, strict=True)]

    def stepper(self) -> EngineStepper:
        from dragoman.decoding.native.stepper import EngineStepper  # here, so that a search needs no torch

        return EngineStepper(self.engine, self.threads)

    def score(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[list[float]]:
        # A target that is forced to its end: the limit leaves only the end of sentence after it.
        longest = max((max(len(src), len(tgt)) for src, tgt in pairs), default=0)
        if longest > self.engine.positions:
            return self.fallback().score(pairs, batch_tokens)
        targets = [list(tgt[:-1]) for _, tgt in pairs]
        found = self.engine.search(
            [src for src, _ in pairs], [len(tgt) + 1 for tgt in targets], _FORCED, targets, self.threads
        )
        return [some[0].token_log_probs for some in found]
