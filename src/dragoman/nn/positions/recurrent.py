"""Positions computed by a recurrence, over the embeddings or over the position vectors themselves.

Both take T sequential steps; in a decoder their carry is part of the state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.positions.scheme import Positions
from dragoman.nn.recurrent import reset_gates

__all__ = ["RecurrentOverEmbeddings", "RecurrentPositions"]


class RecurrentOverEmbeddings(Positions):
    """x_t + h_t, with h_t = GRU(x_t, h_{t-1}) and h_{-1} = 0 (Cho et al. 2014); the carry is h (N, D).

    It reads from left to right only, so padding on the right does not affect any token.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(d_model, d_model, batch_first=True)
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        reset_gates(self.rnn, generator)

    def embed(self, x: Tensor, pos: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        hidden, last = self.rnn(x, None if carry is None else carry[None])  # (N, T, D), (1, N, D)
        return x + hidden, last[0]


class RecurrentPositions(Positions):
    """x_t + p_t, with p_0 trained and p_t = tanh(p_{t-1} W + b); the carry is the last p, the same in every row.

    Sinusoids are such a recurrence without tanh, in which W rotates each pair of features by its angle.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.empty(d_model))
        self.weight = nn.Parameter(torch.empty(d_model, d_model))
        self.bias = nn.Parameter(torch.empty(d_model))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Initialize W as 1.1 times an orthogonal matrix and b as 0, so that the vectors neither vanish nor explode.

        tanh reduces a variance s by about 2 s^2 per step and a gain g adds (g^2 - 1) s; they balance at
        s = (g^2 - 1) / (2 g^4) = 0.072, where small changes keep their size.
        """
        gain = 1.1
        nn.init.normal_(self.start, std=((gain**2 - 1) / (2 * gain**4)) ** 0.5, generator=generator)
        nn.init.orthogonal_(self.weight, gain=gain, generator=generator)
        nn.init.zeros_(self.bias)

    def embed(self, x: Tensor, pos: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        vectors = [self.start[None] if carry is None else self._next(carry[:1])]  # each (1, D)
        while len(vectors) < pos.numel():
            vectors.append(self._next(vectors[-1]))
        return x + torch.cat(vectors), vectors[-1].expand(x.size(0), -1)

    def _next(self, vector: Tensor) -> Tensor:
        return F.linear(vector, self.weight, self.bias).tanh()
