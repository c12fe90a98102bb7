"""The trainer's view of what is learned and of the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config
from dragoman.data.batching import Batch, collate_source, plan_buckets
from dragoman.data.profile import TrainingProfile
from dragoman.errors import DataError
from dragoman.models.seq2seq import Network
from dragoman.tokenizers import PAD, Vocabulary

Score = Callable[[Network], dict[str, Any]]
"""Network -> its validation scores: `valid_loss` (nats per target, not smoothed) and those specific to the task."""

Row = tuple[list[int], list[int]]
"""Source ids and target ids: one label per source token, or one per text; PAD where no label counts."""

_VALID_ROWS = 64
_PROVISIONAL_TOKENS = 1024


class Task(ABC):
    """Indexed training examples, and the validation of a network.

    vocabulary: stored in the model folder.  data_hash: hash of the training data, checked when a run is resumed.
    validates: whether there are validation data.  grid: whether batches are planned for few shapes (`grid_shape`).
    has_grid: whether they can be.
    """

    grid = has_grid = False

    def __init__(self, config: Config, vocabulary: Vocabulary, data_hash: str) -> None:
        self.config, self.vocabulary, self.data_hash = config, vocabulary, data_hash
        self.validates = config.data.valid is not None

    @property
    def profile(self) -> TrainingProfile | None:
        """Statistics of the training data, stored in the model folder; None for tasks without a profile."""
        return None

    @property
    def batch_tokens(self) -> int:
        """Source + target tokens per batch; a provisional number until "auto" is replaced."""
        tokens = self.config.train.batch_tokens
        return _PROVISIONAL_TOKENS if tokens == "auto" else tokens

    @abstractmethod
    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch, a function of (seed, epoch), as arrays of example indices."""

    def block_sizes(self, epoch: int) -> NDArray[np.int64]:
        """Return the number of examples in each block of an epoch; small data are a single block."""
        return np.ones(1, np.int64)

    def block(self, epoch: int, block: int) -> list[NDArray[np.int64]]:
        """Return the batches of a block, at least one, as `epoch` does."""
        return self.epoch(epoch)

    @abstractmethod
    def read(self, indices: NDArray[np.int64], epoch: int, batch: int) -> Batch:
        """Return the examples of batch number `batch`; all randomness is a function of (seed, epoch, batch)."""

    @abstractmethod
    def tokens(self) -> int:
        """Return the number of source + target tokens per epoch, without padding."""

    @abstractmethod
    def validation(self) -> Score | None:
        """Return the function that scores a network, or None if there are no validation data."""

    def _buckets(self, lengths: NDArray[np.int64], epoch: int) -> list[NDArray[np.int64]]:
        """Plan an epoch of batches of similar length; lengths: source + target tokens per example."""
        rng = np.random.default_rng((self.config.train.seed, epoch, 1))
        return plan_buckets(lengths, self.batch_tokens, rng)


class RowTask(Task):
    """A task that builds its batches from rows.  Subclasses set `lengths`, the source + target tokens per row."""

    lengths: NDArray[np.int64]

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        return self._buckets(self.lengths, epoch)

    def read(self, indices: NDArray[np.int64], epoch: int, batch: int) -> Batch:
        return self.collate(self.rows(indices.tolist(), (self.config.train.seed, epoch, batch)))

    @abstractmethod
    def rows(self, indices: list[int], key: tuple[int, int, int]) -> list[Row]:
        """Return the rows with these indices; all randomness is a function of key = (seed, epoch, batch)."""

    def collate(self, rows: list[Row]) -> Batch:
        """Return a batch with the labels as tgt_out; tgt_in is (B, 0), because no label is an input."""
        src, mask = collate_source([ids for ids, _ in rows])
        targets, _ = collate_source([labels for _, labels in rows])
        counted = int((targets != PAD).sum())
        return Batch(src, mask, targets.new_zeros(len(rows), 0), targets, sum(len(ids) for ids, _ in rows), counted)

    def valid_batches(self, rows: list[Row], path: Path) -> list[Batch]:
        """Return all rows of the validation file in batches of similar length.  Raises DataError if there are none."""
        if not rows:
            raise DataError(f"data.valid: {path} contains no examples; specify another file, or remove data.valid")
        rows = sorted(rows, key=lambda row: len(row[0]) + len(row[1]))
        return [self.collate(rows[i : i + _VALID_ROWS]) for i in range(0, len(rows), _VALID_ROWS)]


def refuse_empty(count: int, paths: Sequence[Path], missing: str) -> None:
    """Raise DataError if the training files contain no examples; missing: what they lack."""
    if not count:
        raise DataError(f"nothing to train on in {', '.join(map(str, paths))}: {missing}; specify other files")
