"""Position vectors added to the embeddings: fixed sinusoids, or a trained table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.errors import UsageError
from dragoman.nn.positions.scheme import Positions

__all__ = ["Learned", "Sinusoidal", "sinusoids"]


def sinusoids(pos: Tensor, d_model: int) -> Tensor:
    """PE(pos, 2k) = sin(pos w_k), PE(pos, 2k+1) = cos(pos w_k), w_k = 10000^(-2k / d_model); (T,) -> (T, D).

    Vaswani et al. 2017, section 3.5.  Sines and cosines are interleaved as in the paper, not in two halves.
    """
    rates = 10000.0 ** (-torch.arange(0, d_model, 2, device=pos.device, dtype=torch.float64) / d_model)
    angles = pos.to(torch.float64)[:, None] * rates  # (T, D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)  # (T, D)


class _Table(Positions):
    """x + table[pos], where the table is (length, D)."""

    table: Tensor

    def embed(self, x: Tensor, pos: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if pos.is_cpu:
            self.ensure_length(int(pos[-1]) + 1, x)
        return x + self.table[pos], carry


class Sinusoidal(_Table):
    """Fixed sinusoids (Vaswani et al. 2017, section 3.5); the table grows with the longest sequence."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", torch.empty(0, d_model), persistent=False)

    def ensure_length(self, length: int, like: Tensor) -> None:
        if self.table.size(0) < length or self.table.dtype != like.dtype or self.table.device != like.device:
            size = max(256, 1 << (length - 1).bit_length())
            self.table = sinusoids(torch.arange(size), self.d_model).to(like)


class Learned(_Table):
    """One trained vector for each position below `max_len` (Gehring et al. 2017; BERT, GPT-2).

    Raises UsageError for later positions.
    """

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_len, d_model))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Initialize with N(0, 1/2), the variance of sinusoids; embeddings have variance 1."""
        nn.init.normal_(self.table, std=0.5**0.5, generator=generator)

    def ensure_length(self, length: int, like: Tensor) -> None:
        if length > (max_len := self.table.size(0)):
            raise UsageError(
                f"{length} tokens exceed the learned positions (max_len = {max_len} tokens); shorten or split the "
                f"input, or train with model.position.max_len of at least {length} or with a position kind without a "
                "maximum length (sinusoidal, rotary, t5, alibi, shaw)"
            )
