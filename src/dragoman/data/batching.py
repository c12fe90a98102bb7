"""Padded batches of examples as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dragoman.tokenizers import BOS, EOS, PAD

if TYPE_CHECKING:
    from dragoman.data.store.reader import Store
    from dragoman.tokenizers import Tokenizer

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

    def padded(self, rows: int, src_length: int, tgt_length: int) -> Batch:
        """Return the batch with this shape; further rows have a source of one token, and no targets."""
        more, src_more, tgt_more = (
            rows - len(self.src),
            src_length - self.src.size(1),
            tgt_length - self.tgt_out.size(1),
        )
        mask = torch.ones_like(self.src, dtype=torch.bool) if self.src_mask is None else self.src_mask
        mask = F.pad(mask, (0, src_more, 0, more))
        mask[len(self.src) :, :1] = True  # attention to no position at all is undefined
        src = F.pad(self.src, (0, src_more, 0, more), value=PAD)
        tgt_in, tgt_out = (F.pad(t, (0, tgt_more, 0, more), value=PAD) for t in (self.tgt_in, self.tgt_out))
        return Batch(src, mask, tgt_in, tgt_out, self.src_tokens, self.tgt_tokens)

    def pinned(self) -> Batch:
        """Return the batch in memory from which a GPU reads without the processor."""
        mask = None if self.src_mask is None else self.src_mask.pin_memory()
        src, tgt_in, tgt_out = (t.pin_memory() for t in (self.src, self.tgt_in, self.tgt_out))
        return Batch(src, mask, tgt_in, tgt_out, self.src_tokens, self.tgt_tokens)


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


def read_batch(store: Store, numbers: Ints, tokenizer: Tokenizer, sampling: tuple[float, float], seed: int) -> Batch:
    """Return the pairs of these numbers as a batch.

    sampling: rates of source and target; unless both are 0, the texts are segmented anew, at random.
    """
    if any(sampling):
        return collate(tokenizer.encode_sampled([store.text(int(n)) for n in numbers], sampling, seed))
    return collate([store.pair(int(n)) for n in numbers])
