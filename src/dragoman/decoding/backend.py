"""What a translator needs of whatever does the work: hypotheses for sources, and log-probabilities of given targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from dragoman.decoding.hypothesis import Hypothesis
from dragoman.decoding.settings import SearchSettings
from dragoman.decoding.shortlist import Shortlist

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from dragoman.decoding.pytorch.backend import TorchBackend
    from dragoman.decoding.pytorch.stream import TokenStream
    from dragoman.models.seq2seq import Model

__all__ = ["DecodingBackend", "Ids", "torch_backend", "torch_backend_of"]

Ids = Sequence[int]


class DecodingBackend(ABC):
    """A model at work on the plain path (`TorchBackend`) or on the engine (`fast.NativeBackend`)."""

    device: torch.device | str
    """Where the work is done."""
    shortlist: Shortlist | None = None
    """The words that a sentence may use in a search; all where there is none.  `score` and `align` use all."""
    load_scorer: Callable[[], DecodingBackend] | None = None
    """Loads the backend that scores in float32; None where this one scores by itself: it is in float32, or its reduced
    precision was requested."""

    @cached_property
    def scorer(self) -> DecodingBackend:
        """The backend whose `score` is returned to users: this one, or the same model in float32, loaded once."""
        return self if self.load_scorer is None else self.load_scorer()

    @property
    @abstractmethod
    def description(self) -> str:
        """Which path, which precision, and why: a line for a person."""

    @abstractmethod
    def search(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], settings: SearchSettings, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        """`settings.nbest` hypotheses a source (ids with the end of sentence), best first, each begun by its prefix.

        batch_tokens: padded source tokens times rows that are searched at once.
        """

    @abstractmethod
    def live(self, source: Ids, prefix: Ids, settings: SearchSettings) -> TokenStream:
        """The search of one source, step by step (`search_live`)."""

    @abstractmethod
    def align(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[NDArray[np.float32]]:
        """Of pairs of source and target, both with their end: (T, S), where each target token looked as it was said.

        The weights of the cross-attention, averaged over heads and layers: each row sums to 1.  Raises UsageError for a
        model that has none.
        """

    @abstractmethod
    def score(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[list[float]]:
        """The natural log-probability of each target token, for pairs of source and target, both with their end."""


def torch_backend(model: Model, device: str | torch.device) -> DecodingBackend:
    """The plain path of a model."""
    from dragoman.decoding.pytorch.backend import TorchBackend  # here, so that the engine searches without torch

    return TorchBackend(model, device)


def torch_backend_of(backend: DecodingBackend) -> TorchBackend:
    """The backend itself, or the plain path of the engine."""
    from dragoman.decoding.pytorch.backend import TorchBackend

    plain = getattr(backend, "fallback", backend)
    assert isinstance(plain, TorchBackend)
    return plain
