"""Rotary positions: rotations of queries and keys, of which their product keeps the distance only."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.errors import UsageError
from dragoman.nn.positions.scheme import Positions

__all__ = ["Rotary"]


class Rotary(Positions):
    """Rotation of each pair of features of a query or key by an angle proportional to its position (Su et al. 2021).

    (x_2k, x_2k+1) at position p is rotated by p * base^(-2k / R), so that q . k depends on the distance only.  R is the
    first `fraction` of the Dh features of a head; the others are unchanged.  Pairs are neighbours, as in the paper;
    Llama pairs k with k + R/2, which a permutation of the columns of W^Q and W^K converts.

    Raises UsageError if R is odd or 0.
    """

    def __init__(self, d_head: int, base: float, fraction: float = 1.0) -> None:
        super().__init__()
        self.rotated = int(d_head * fraction)  # R
        if self.rotated == 0 or self.rotated % 2:
            raise UsageError(
                f"rotary positions: fraction {fraction} of a head of {d_head} features is {self.rotated}, but "
                "pairs are rotated; choose a fraction (or d_model and n_heads) for which it is even and at least 2"
            )
        self.base = base
        self.register_buffer("rotations", torch.empty(0, self.rotated // 2, dtype=torch.complex64), persistent=False)
        self.rotations: Tensor

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        if pos.is_cpu:
            self.ensure_length(int(pos[-1]) + 1, q)
        rotations = self.rotations[pos]  # (T, R/2), one complex number per pair: a rotation is one product

        def whole(x: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.to(dtype).unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * rotations).flatten(-2).to(x.dtype)

        def part(x: Tensor) -> Tensor:
            # Contiguous, because view_as_complex needs even strides and a head may be of odd size.
            return torch.cat([whole(x[..., : self.rotated].contiguous()), x[..., self.rotated :]], dim=-1)

        return (whole(q), whole(k)) if self.rotated == q.size(-1) else (part(q), part(k))

    def ensure_length(self, length: int, like: Tensor) -> None:
        dtype = torch.complex128 if like.dtype == torch.float64 else torch.complex64
        table = self.rotations
        if table.size(0) < length or table.device != like.device or table.dtype != dtype:
            size = max(256, 1 << (length - 1).bit_length())
            rates = self.base ** (-torch.arange(0, self.rotated, 2, dtype=torch.float64) / self.rotated)
            angles = torch.arange(size, dtype=torch.float64)[:, None] * rates
            self.rotations = torch.polar(torch.ones_like(angles), angles).to(like.device, dtype)
