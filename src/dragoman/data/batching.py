"""From a store of token ids to batches: length buckets, a token budget, an order that follows from (seed, epoch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.data.store import Store
from dragoman.data.tokenizer import BOS, EOS, PAD, Tokenizer

__all__ = ["Batch", "collate", "collate_source", "plan_batches", "read_batch"]


@dataclass(frozen=True)
class Batch:
    """src (B, S) and src_mask (B, S) or None; tgt_in (B, T) begins with BOS, tgt_out (B, T) ends with EOS.

    src_tokens, tgt_tokens: how many are words and not padding.
    """

    src: Tensor
    src_mask: Tensor | None
    tgt_in: Tensor
    tgt_out: Tensor
    src_tokens: int
    tgt_tokens: int

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        mask = None if self.src_mask is None else self.src_mask.to(device, non_blocking=True)
        moved = [t.to(device, non_blocking=True) for t in (self.src, self.tgt_in, self.tgt_out)]
        return Batch(moved[0], mask, moved[1], moved[2], self.src_tokens, self.tgt_tokens)


def collate_source(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
    """Rows of ids -> (B, longest), filled with PAD on the right, and the mask (None where all are equally long)."""
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
    """Pairs of source and target ids, EOS last on both sides -> a batch."""
    src, src_mask = collate_source([s for s, _ in pairs])
    tgt_out, _ = collate_source([t for _, t in pairs])
    tgt_in = torch.full_like(tgt_out, BOS)
    tgt_in[:, 1:] = tgt_out[:, :-1]
    tgt_in[tgt_in == EOS] = PAD  # behind the last word; no position that counts sees it
    return Batch(src, src_mask, tgt_in, tgt_out, sum(len(s) for s, _ in pairs), sum(len(t) for _, t in pairs))


def plan_batches(store: Store, batch_tokens: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """The batches of one epoch as arrays of pair numbers, in the order they are trained on.

    A batch has at most `batch_tokens` source + target tokens, padding included (a single longer pair is a batch of
    its own).  Pairs of like length come together: sorted by target, then source length, ties in random order.
    """
    rng = np.random.default_rng((seed, epoch, 1))
    pairs = store.draw(rng)
    rng.shuffle(pairs)
    src, tgt = store.lengths()
    src, tgt = src[pairs], tgt[pairs]
    order = np.lexsort((src, tgt))  # stable: pairs of equal lengths stay in the random order of this epoch
    batches: list[NDArray[np.int64]] = []
    begin, widest_src, widest_tgt = 0, 0, 0
    for i, at in enumerate(order):
        s, t = max(widest_src, int(src[at])), max(widest_tgt, int(tgt[at]))
        if i > begin and (i - begin + 1) * (s + t) > batch_tokens:
            batches.append(pairs[order[begin:i]])
            begin, s, t = i, int(src[at]), int(tgt[at])
        widest_src, widest_tgt = s, t
    batches.append(pairs[order[begin:]])
    return [batches[i] for i in rng.permutation(len(batches))]


def read_batch(store: Store, numbers: NDArray[np.int64], tokenizer: Tokenizer, sampling: float, seed: int) -> Batch:
    """The pairs of these numbers as a batch; with `sampling`, segmented anew from their text."""
    if sampling > 0:
        return collate(tokenizer.encode_sampled([store.text(int(n)) for n in numbers], sampling, seed))
    return collate([store.pair(int(n)) for n in numbers])
