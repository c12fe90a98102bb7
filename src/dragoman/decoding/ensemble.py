"""Ensembles: several models with one vocabulary that search together.

Letters: S source length, T target length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.decoding.backend import DecodingBackend
from dragoman.decoding.hypothesis import Ids
from dragoman.decoding.pytorch.stepper import EnsembleStepper


class EnsembleBackend(DecodingBackend):
    """Backends on one device, native or PyTorch; the probability of a token is the mean over them."""

    def __init__(self, members: Sequence[DecodingBackend]) -> None:
        self.members = members
        self.device = members[0].device
        if any(member.load_scorer for member in members):
            self.load_scorer = lambda: EnsembleBackend([member.scorer for member in members])

    @property
    def description(self) -> str:
        distinct = dict.fromkeys(member.description for member in self.members)
        return f"ensemble of {len(self.members)} models: {'; '.join(distinct)}"

    @property
    def max_length(self) -> float:
        return min(member.max_length for member in self.members)

    def stepper(self) -> EnsembleStepper:
        return EnsembleStepper([member.stepper() for member in self.members])

    def to_torch(self) -> EnsembleBackend:
        return EnsembleBackend([member.to_torch() for member in self.members])

    def fallback(self) -> EnsembleBackend:
        # A member without a length limit has no fallback.
        return EnsembleBackend([m if math.isinf(m.max_length) else m.fallback() for m in self.members])

    def align(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[NDArray[np.float32]]:
        weights = [member.align(pairs, batch_tokens) for member in self.members]
        return [np.mean(pair, axis=0) for pair in zip(*weights, strict=True)]

    def score(self, pairs: Sequence[tuple[Ids, Ids]], batch_tokens: int) -> list[list[float]]:
        log_probs = [member.score(pairs, batch_tokens) for member in self.members]
        by_pair = zip(*log_probs, strict=True)
        return [(np.logaddexp.reduce(rows, axis=0) - math.log(len(rows))).tolist() for rows in by_pair]
