"""Rotary positions: an absolute turn of queries and keys of which their product keeps the distance only."""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.errors import UsageError
from dragoman.nn.positions.seam import Positions

__all__ = ["Rotary"]


class Rotary(Positions):
    """Each pair of numbers of a query or key is turned by an angle that grows with its position (Su et al. 2021).

    (x_2k, x_2k+1) of position p is turned by p * base^(-2k / R), so that q . k depends on the distance only.  R is the
    first `fraction` of a head's Dh numbers; the others stay as they are.  Pairs are neighbours, as in the paper (Llama
    pairs k with k + R/2; a permutation of the rows of W^Q and W^K converts).

    Raises `UsageError` where R is odd or 0.
    """

    def __init__(self, d_head: int, base: float, fraction: float = 1.0) -> None:
        super().__init__()
        self.turned = int(d_head * fraction)
        if self.turned == 0 or self.turned % 2:
            raise UsageError(
                f"rotary positions turn pairs, but fraction {fraction} of a head of {d_head} numbers is {self.turned}; "
                "choose a fraction (or d_model and n_heads) that makes it even and at least 2"
            )
        self.base = base
        self.register_buffer("turns", torch.empty(0, self.turned // 2, dtype=torch.complex64), persistent=False)
        self.turns: Tensor

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        if pos.is_cpu:
            self.ensure_length(int(pos[-1]) + 1, q)
        turns = self.turns[pos]  # (T, R/2), one complex number a pair: turning is one product

        def turn(x: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.to(wide).unflatten(-1, (-1, 2)))
            return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)

        def turn_part(x: Tensor) -> Tensor:
            # Contiguous, because the stride of an odd head is no whole number of pairs.
            return torch.cat([turn(x[..., : self.turned].contiguous()), x[..., self.turned :]], dim=-1)

        return (turn(q), turn(k)) if self.turned == q.size(-1) else (turn_part(q), turn_part(k))

    def ensure_length(self, length: int, like: Tensor) -> None:
        dtype = torch.complex128 if like.dtype == torch.float64 else torch.complex64
        if self.turns.size(0) < length or self.turns.device != like.device or self.turns.dtype != dtype:
            room = max(256, 1 << (length - 1).bit_length())
            rates = self.base ** (-torch.arange(0, self.turned, 2, dtype=torch.float64) / self.turned)
            angles = torch.arange(room, dtype=torch.float64)[:, None] * rates
            self.turns = torch.polar(torch.ones_like(angles), angles).to(like.device, dtype)
