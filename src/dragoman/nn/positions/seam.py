"""The seam: every place of the computation at which a scheme may act, and nothing done at any of them."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Positions"]


class Positions(nn.Module):
    """No positions at all (`kind = "none"`), and the seam that every scheme fills in."""

    def ensure_length(self, length: int, like: Tensor) -> None:
        """Make what is needed for positions below `length`, of the type and device of `like`.

        Whoever runs a stack calls it, because the scheme would have to ask a GPU how far its positions go, and to wait
        for the answer; on a CPU it asks by itself.
        """

    def embed(self, x: Tensor, pos: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Mark the embeddings x (N, T, D) of positions pos (T,).

        `carry` (N, ...) goes from one call to the next, which takes up where the last one stopped; None: the first.
        """
        return x, carry

    def static_bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """What is added to all scores before the softmax, whatever the queries: (H or 1, Tq, Tk), or None."""
        return None

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        """Turn queries and keys (N, H, T, Dh) of positions pos (T,); the keys may have fewer heads."""
        return q, k

    def query_bias(self, q: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """What is added to the scores and depends on the queries (Shaw): (N, H, Tq, Tk), or None."""
        return None

    def value_term(self, weights: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """What is added to the outputs and depends on the weights (Shaw): (N, H, Tq, Dh), or None."""
        return None

    needs_weights = False
    """True where `query_bias` or `value_term` is used: the attention then writes its weights out."""
