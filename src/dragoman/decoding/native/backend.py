"""The engine as a translator uses it; what it does not do itself is done by the plain path."""

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


class NativeBackend(DecodingBackend):
    """An engine and how many threads it gets.

    plain: makes the plain path's backend, which takes what is longer than the positions that the packed model has.
    """

    def __init__(self, engine: Engine, precision: str, threads: int, plain: Callable[[], DecodingBackend]) -> None:
        self.engine = engine
        self.precision = precision
        self.threads = threads
        self._make_plain = plain
        self._plain: DecodingBackend | None = None
        self._told_far = False

    device = "cpu"

    @property
    def description(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        listed = f", {self.shortlist.description}" if self.shortlist else ""
        return f"native engine ({self.engine.build}), {self.precision}, {threads}{listed}"

    @property
    def plain(self) -> DecodingBackend:
        """The same model on the plain path, loaded when it is first asked for."""
        if self._plain is None:
            self._plain = self._make_plain()
            self._plain.shortlist = self.shortlist
        return self._plain

    def _far(self) -> DecodingBackend:
        """The plain path, for what is longer than the packed model has positions; said once, for it is slow."""
        if not self._told_far:
            self._told_far = True
            _LOG.warning(
                "some texts may become longer than the %s tokens of the native engine: the plain path takes them, more "
                "slowly (source, prefix, max_extra and min_length make the length)",
                f"{self.engine.positions:,}",
            )
        return self.plain

    def search(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        limits = [settings.limit(len(s), len(p)) for s, p in zip(sources, prefixes, strict=True)]
        found: list[list[Hypothesis]] = [[] for _ in sources]
        near = self._drawn if settings.sample else self._searched
        for fit, work in ((True, near), (False, lambda *given: self._far().search(*given))):
            places = [i for i, limit in enumerate(limits) if (limit <= self.engine.positions) == fit]
            if places:  # a source is no longer than its limit
                some = work([sources[i] for i in places], [prefixes[i] for i in places], settings, batch_tokens)
                for place, hypotheses in zip(places, some, strict=True):
                    found[place] = hypotheses
        return found

    def _searched(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        limits = [settings.limit(len(s), len(p)) for s, p in zip(sources, prefixes, strict=True)]
        lists = None
        if self.shortlist is not None:
            lists = [self.shortlist.of(s, p) for s, p in zip(sources, prefixes, strict=True)]
        return self.engine.search(
            sources, limits, settings, prefixes, self.threads, shortlists=lists, source_tokens=batch_tokens
        )

    def _drawn(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        from dragoman.decoding.pytorch.backend import search_batches

        stepper = self._stepper()
        return search_batches(stepper, sources, prefixes, settings, batch_tokens, self.device, self.shortlist)

    def align(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[NDArray[np.float32]]:
        if max((max(len(src), len(tgt)) for src, tgt in pairs), default=0) > self.engine.positions:
            return self._far().align(pairs, batch_tokens)
        sizes = [(len(tgt), len(src)) for src, tgt in pairs]
        starts = list(itertools.accumulate((rows * columns for rows, columns in sizes), initial=0))
        weights = array("f", [0]) * starts[-1]
        targets = [list(tgt[:-1]) for _, tgt in pairs]
        limits = [rows for rows, _ in sizes]
        self.engine.search([src for src, _ in pairs], limits, _FORCED, targets, self.threads, attention=weights)
        import numpy as np  # here, so that translating starts without it

        whole = np.frombuffer(weights, np.float32)
        return [whole[at:end].reshape(size) for (at, end), size in zip(itertools.pairwise(starts), sizes, strict=True)]

    def stream(self, source: Ids, prefix: Ids, settings: SearchSettings) -> TokenStream:
        if settings.limit(len(source), len(prefix)) > self.engine.positions:
            return self._far().stream(source, prefix, settings)
        import torch

        from dragoman.decoding.pytorch.stepper import with_shortlist
        from dragoman.decoding.pytorch.stream import stream_tokens

        src = torch.tensor([list(source)], dtype=torch.long)
        stepper = with_shortlist(self.shortlist, self._stepper(), [source], [prefix])
        return stream_tokens(stepper, src, settings, prefix or None)

    def _stepper(self) -> EngineStepper:
        from dragoman.decoding.native.stepper import EngineStepper  # here, so that a search needs no torch

        return EngineStepper(self.engine, self.threads)

    def score(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[list[float]]:
        # A target that is forced to its end: the limit leaves only the end of sentence after it.
        longest = max((max(len(src), len(tgt)) for src, tgt in pairs), default=0)
        if longest > self.engine.positions:
            return self._far().score(pairs, batch_tokens)
        targets = [list(tgt[:-1]) for _, tgt in pairs]
        found = self.engine.search(
            [src for src, _ in pairs], [len(tgt) + 1 for tgt in targets], _FORCED, targets, self.threads
        )
        return [some[0].token_log_probs for some in found]
