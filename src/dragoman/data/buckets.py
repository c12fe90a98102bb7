"""Examples of like length in batches of a token budget: in random order for training, largest first elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["batches_within", "plan_buckets"]


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


def batches_within(sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Places of similar size, the largest first; the largest size of a batch times its number is within the budget.

    One that is larger than the budget is alone.
    """
    batch: list[int] = []
    for place in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if batch and sizes[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
