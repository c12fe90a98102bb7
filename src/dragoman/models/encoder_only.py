"""An encoder with an output layer: labels for words, masked words, or a class for a text (Devlin et al. 2019).

Shapes: B sentences, S source length, D d_model, V labels.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from dragoman.models.seq2seq import Network

Pooling = Literal["none", "first", "last", "mean"]


class EncoderOnly(Network):
    """An encoder with an output layer over labels; encoder(src, src_mask) returns states (B, S, D).

    head: applied to the pooled states, `nn.Identity` for none.
    """

    architecture = "encoder_only"

    def __init__(self, encoder: nn.Module, head: nn.Module, output: nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.output = output
        self.pooling = pooling

    def pool(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Pool x (B, S, D), mask (B, S) True = a token, to (B, 1, D); the pooling "none" returns x.

        "first" selects the first position, where the data puts a class token; "mean" averages the tokens without
        padding; "last" is for recurrent encoders, see `RecurrentEncoderOnly`.
        """
        if self.pooling == "none":
            return x
        if self.pooling == "first":
            return x[:, :1]
        if mask is None:
            return x.mean(dim=1, keepdim=True)
        tokens = mask[..., None]  # (B, S, 1)
        return x.masked_fill(~tokens, 0).sum(dim=1, keepdim=True) / tokens.sum(dim=1, keepdim=True)

    def hidden(self, src: Tensor, src_mask: Tensor | None, tgt_in: Tensor) -> Tensor:
        """Return (B, S, D), or with pooling (B, 1, D), for src (B, S) and src_mask (B, S) or None; ignores tgt_in."""
        out: Tensor = self.head(self.pool(self.encoder(src, src_mask), src_mask))
        return out
