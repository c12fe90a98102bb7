"""An image as a sequence of patches (Dosovitskiy et al. 2021), read by the layers of a Transformer's encoder.

Letters: B images, P patch size in pixels, C channels, n patches, D d_model, V classes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dragoman.errors import UsageError
from dragoman.models.seq2seq import Network
from dragoman.nn.dropout import Dropout
from dragoman.nn.layers import EncoderLayer
from dragoman.nn.positions import Positions
from dragoman.nn.taps import Tap

__all__ = ["Vision", "patches"]


def patches(images: Tensor, patch: int) -> Tensor:
    """images (B, height, width, C) -> (B, n, C*P*P): patches row by row, in each channel by channel, row by row.

    Raises UsageError for images that are not whole patches.
    """
    if images.dim() != 4 or images.size(1) % patch or images.size(2) % patch:
        raise UsageError(
            f"images of shape {tuple(images.shape)} in patches of {patch} x {patch}: give (B, height, width, channels),"
            f" height and width multiples of {patch}; crop or pad the images, or choose another patch"
        )
    cut = images.unfold(1, patch, patch).unfold(2, patch, patch)  # (B, height/P, width/P, C, P, P)
    return cut.flatten(3).flatten(1, 2)


class Vision(Network):
    """Patches through one matrix, a learned class token in front, and the layers; its last vector is the image's."""

    def __init__(
        self,
        patch_numbers: int,
        d_model: int,
        n_patches: int,
        positions: Positions,
        layers: Iterable[EncoderLayer],
        final_norm: nn.Module,
        output: nn.Module,
        dropout: float,
    ) -> None:
        """patch_numbers: C*P*P.  n_patches: of an image, which the class token is not counted among."""
        super().__init__()
        self.n_patches = n_patches
        self.embedding = nn.Linear(patch_numbers, d_model)
        self.class_token = nn.Parameter(torch.empty(d_model))
        self.positions = positions
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm
        self.output = output
        self.embedded = Tap("row", "position", "feature")
        self.positioned = Tap("row", "position", "feature")
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """The class token as a row of an embedding matrix: N(0, 1/d_model)."""
        nn.init.normal_(self.class_token, std=self.class_token.numel() ** -0.5, generator=generator)

    def hidden(self, src: Tensor, src_mask: Tensor | None, tgt_in: Tensor) -> Tensor:
        """src (B, n, C*P*P), see `patches` -> (B, 1, D), the class token's vector (equations 1 to 4).

        An image has no padding and its target is a class: src_mask and tgt_in are not looked at.  Raises UsageError
        for patches of another number or size.
        """
        expected = (self.n_patches, self.embedding.in_features)
        if src.shape[1:] != expected:
            raise UsageError(
                f"images of shape {tuple(src.shape)}: this model takes patches (B, {expected[0]}, {expected[1]});"
                " scale the images to the size it was trained on and cut them with dragoman.models.vision.patches"
            )
        x = torch.cat([self.class_token.expand(src.size(0), 1, -1), self.embedding(src)], dim=1)  # (B, 1 + n, D)
        pos = torch.arange(x.size(1), device=x.device)
        self.positions.ensure_length(x.size(1), x)
        x, _ = self.positions.embed(self.embedded(x), pos, None)
        x = self.dropout(self.positioned(x))
        bias = self.positions.static_bias(pos, pos)
        for layer in self.layers:
            x = layer(x, self.positions, pos, bias)
        out: Tensor = self.final_norm(x[:, :1])
        return out
