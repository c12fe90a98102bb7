"""Examples of like length in batches of a token budget."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["plan_buckets"]


def plan_buckets(lengths: NDArray[np.int64], batch_tokens: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Every example once, as batches of example numbers in random order.

    lengths: source + target tokens of each example.  A batch has at most `batch_tokens`, padding included; a longer
    example is a batch of its own.  Sorted by length, ties in random order.
    """
    numbers = rng.permutation(len(lengths))
    numbers = numbers[np.argsort(lengths[numbers], kind="stable")]
    batches: list[NDArray[np.int64]] = []
    begin = 0
    for i, widest in enumerate(lengths[numbers].tolist()):
        if i > begin and (i - begin + 1) * widest > batch_tokens:
            batches.append(numbers[begin:i])
            begin = i
    batches.append(numbers[begin:])
    return [batches[i] for i in rng.permutation(len(batches))]
