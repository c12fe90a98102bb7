"""What is learned, from which data: the trainer's only view of both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config
from dragoman.data.batching import Batch
from dragoman.data.vocabulary import Vocabulary
from dragoman.models.seq2seq import Network

__all__ = ["Score", "Task"]

Score = Callable[[Network], dict[str, Any]]
"""The validation scores of a network: `valid_loss` (nats a target, not smoothed) and what else the task knows."""


class Task(ABC):
    """Examples by number, and how a network is scored on those it was not trained on.

    vocabulary: what a model folder keeps.  data_hash: of the training data, so that a run never goes on with another.
    validates: whether there is something to score on.
    """

    def __init__(self, config: Config, vocabulary: Vocabulary, data_hash: str) -> None:
        self.config = config
        self.vocabulary = vocabulary
        self.data_hash = data_hash
        self.validates = config.data.valid is not None

    @abstractmethod
    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of an epoch as arrays of example numbers, in training order; follows from (seed, epoch)."""

    @abstractmethod
    def read(self, numbers: NDArray[np.int64], epoch: int, place: int) -> Batch:
        """The examples of these numbers, which are batch `place` of the epoch.

        What is random about them follows from (seed, epoch, place).
        """

    @abstractmethod
    def tokens(self) -> int:
        """Source + target tokens of an epoch, no padding."""

    @abstractmethod
    def validation(self) -> Score | None:
        """How a network is scored; None where there is nothing to score on."""
