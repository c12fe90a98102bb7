"""Batches of similar lengths within a token budget, in an order determined by (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.ids import BOS, EOS, PAD

if TYPE_CHECKING:
    from dragoman.data.store import Store
    from dragoman.data.tokenizer import Tokenizer

__all__ = ["Batch", "batches_within", "collate", "collate_source", "plan_batches", "plan_buckets", "read_batch"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """src (B, S) and src_mask (B, S) or None; tgt_in (B, T) begins with BOS, tgt_out (B, T) ends with EOS.

    src_tokens, tgt_tokens: numbers of tokens without padding.
    """

    src: Tensor
    src_mask: Tensor | None
    tgt_in: Tensor
    tgt_out: Tensor
    src_tokens: int
    tgt_tokens: int

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; the copy to a GPU does not wait for its earlier work."""
        if device.type == "cpu":
            return self

        def move(tensor: Tensor) -> Tensor:
            pinned = tensor.pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor
            return pinned.to(device, non_blocking=True)

        mask = None if self.src_mask is None else move(self.src_mask)
        moved = [move(tensor) for tensor in (self.src, self.tgt_in, self.tgt_out)]
        return Batch(moved[0], mask, moved[1], moved[2], self.src_tokens, self.tgt_tokens)


def collate_source(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
    """Return rows of ids padded on the right (B, longest), and their mask, None if all rows are equally long."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    out = np.full((len(rows), longest), PAD, dtype=np.int64)
    for i, row in enumerate(rows):
        out[i, : lengths[i]] = row
    mask = None
    if min(lengths) < longest:
        mask = torch.from_numpy(np.arange(longest)[None, :] < np.asarray(lengths)[:, None])
    return torch.from_numpy(out), mask


def collate(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    """Return pairs of source and target ids, both with a final EOS, as a batch."""
    src, src_mask = collate_source([s for s, _ in pairs])
    tgt_out, _ = collate_source([t for _, t in pairs])
    tgt_in = torch.full_like(tgt_out, BOS)
    tgt_in[:, 1:] = tgt_out[:, :-1]
    tgt_in[tgt_in == EOS] = PAD  # after the last token; only ignored positions attend to it
    return Batch(src, src_mask, tgt_in, tgt_out, sum(len(s) for s, _ in pairs), sum(len(t) for _, t in pairs))


def _split(numbers: Ints, src: Ints, tgt: Ints, batch_tokens: int, rng: np.random.Generator) -> list[Ints]:
    """Split sorted `numbers` into batches within the budget, in random order.

    src, tgt: tokens per example.  A batch costs its size times the sum of the longest source and the longest target.
    """
    batches: list[Ints] = []
    begin, longest_src, longest_tgt = 0, 0, 0
    for i, (s, t) in enumerate(zip(src.tolist(), tgt.tolist(), strict=True)):
        longest_src, longest_tgt = max(longest_src, s), max(longest_tgt, t)
        if i > begin and (i - begin + 1) * (longest_src + longest_tgt) > batch_tokens:
            batches.append(numbers[begin:i])
            begin, longest_src, longest_tgt = i, s, t
    batches.append(numbers[begin:])
    return [batches[i] for i in rng.permutation(len(batches))]


def plan_batches(store: Store, batch_tokens: int, seed: int, epoch: int) -> list[Ints]:
    """Return the batches of one epoch as arrays of pair numbers, in training order.

    A batch has at most `batch_tokens` source + target tokens, padding included; a longer pair forms its own batch.
    Pairs are sorted by target, then source length, ties in random order.
    """
    rng = np.random.default_rng((seed, epoch, 1))
    pairs = store.draw(rng)
    rng.shuffle(pairs)
    src, tgt = (side[pairs] for side in store.lengths())
    order = np.lexsort((src, tgt))  # stable: ties stay in the random order of this epoch
    return _split(pairs[order], src[order], tgt[order], batch_tokens, rng)


def plan_buckets(lengths: Ints, batch_tokens: int, rng: np.random.Generator) -> list[Ints]:
    """Return every example once, as batches of example numbers in random order.

    lengths: source + target tokens of each example.  A batch has at most `batch_tokens`, padding included; a longer
    example forms its own batch.  Examples are sorted by length, ties in random order.
    """
    numbers = rng.permutation(len(lengths))
    numbers = numbers[np.argsort(lengths[numbers], kind="stable")]
    return _split(numbers, lengths[numbers], np.zeros_like(lengths), batch_tokens, rng)


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


def read_batch(store: Store, numbers: Ints, tokenizer: Tokenizer, sampling: tuple[float, float], seed: int) -> Batch:
    """Return the pairs of these numbers as a batch.

    sampling: rates of source and target; unless both are 0, the texts are segmented anew, at random.
    """
    if any(sampling):
        return collate(tokenizer.encode_sampled([store.text(int(n)) for n in numbers], sampling, seed))
    return collate([store.pair(int(n)) for n in numbers])
