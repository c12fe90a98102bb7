"""An encoder by itself (Devlin et al. 2019): a label for each word, a word for each mask, or a class for a text.

Letters: B sentences, S source length, D d_model, V labels.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from dragoman.models.seq2seq import Network
from dragoman.models.transformer import Encoder

__all__ = ["EncoderOnly", "Pooling", "pool"]

Pooling = Literal["none", "first", "mean"]


def pool(x: Tensor, mask: Tensor | None, pooling: Pooling) -> Tensor:
    """x (B, S, D), mask (B, S) True = a word -> (B, S, D) for "none", else one vector a text, (B, 1, D).

    first: the vector of the first place, where the data has put a class token; mean: over words, not padding.
    """
    if pooling == "none":
        return x
    if pooling == "first":
        return x[:, :1]
    if mask is None:
        return x.mean(dim=1, keepdim=True)
    words = mask[..., None]  # (B, S, 1)
    return x.masked_fill(~words, 0).sum(dim=1, keepdim=True) / words.sum(dim=1, keepdim=True)


class EncoderOnly(Network):
    """The encoder of a Transformer with an output layer; the targets are labels, so nothing is read of them."""

    def __init__(self, encoder: Encoder, output: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.encoder = encoder
        self.output = output
        self.pooling = pooling

    def hidden(self, src: Tensor, src_mask: Tensor | None, tgt_in: Tensor) -> Tensor:
        """src (B, S), src_mask (B, S) or None -> (B, S, D), or with pooling (B, 1, D); tgt_in is not looked at."""
        return pool(self.encoder(src, src_mask), src_mask, self.pooling)
