"""Positions that are computed one after another: a recurrent network knows the order it reads in.

Two ways: a network that reads the embeddings and marks each by what came before it, and one that reads nothing and
brings forth the position vectors.  Both cost T steps in a row.  In a decoder what they carry is part of the state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.positions.seam import Positions

__all__ = ["RecurrentOverEmbeddings", "RecurrentPositions"]


class RecurrentOverEmbeddings(Positions):
    """x_t + h_t, with h_t = GRU(x_t, h_{t-1}) and h_{-1} = 0 (Cho et al. 2014); the carry is h (N, D).

    It reads forwards only: padding stands on the right and so never reaches a word.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(d_model, d_model, batch_first=True)
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Input matrices Glorot uniform and hidden matrices orthogonal, a gate at a time; biases 0."""
        ((of_input, of_hidden, *biases),) = self.rnn.all_weights
        for gate in of_input.data.chunk(3):
            nn.init.xavier_uniform_(gate, generator=generator)
        for gate in of_hidden.data.chunk(3):
            nn.init.orthogonal_(gate, generator=generator)
        for bias in biases:
            nn.init.zeros_(bias)

    def embed(self, x: Tensor, pos: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        hidden, last = self.rnn(x, None if carry is None else carry[None])  # (N, T, D), (1, N, D)
        return x + hidden, last[0]


class RecurrentPositions(Positions):
    """x_t + p_t, with p_0 trained and p_t = tanh(W p_{t-1} + b); the carry is the last p, the same in every row.

    The sinusoids are such a recurrence too: there is no tanh, and W turns each pair of numbers by its angle.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.empty(d_model))
        self.weight = nn.Parameter(torch.empty(d_model, d_model))
        self.bias = nn.Parameter(torch.empty(d_model))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """W = 1.1 times an orthogonal matrix, b = 0: a motion that neither dies away nor stands still.

        tanh takes from a variance s about 2 s^2 a step, a gain g gives (g^2 - 1) s: they balance at
        s = (g^2 - 1) / (2 g^4) = 0.072, where a small change is passed on at its own size.
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
