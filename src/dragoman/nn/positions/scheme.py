"""The interface of position schemes."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Positions"]


class Positions(nn.Module):
    """No positions (`kind = "none"`), and the base class of all schemes; by default each method changes nothing."""

    needs_weights = False
    """Whether `query_bias` or `value_term` is used; attention then computes its weights explicitly."""

    def ensure_length(self, length: int, like: Tensor) -> None:
        """Extend tables to positions 0 .. length - 1, with the dtype and device of `like`.

        Called by each stack before `embed`, because reading the last position from a GPU would synchronize with it.
        """

    def embed(self, x: Tensor, pos: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Add positions pos (T,) to the embeddings x (N, T, D), and return the carry (N, ...) for the next call.

        The carry is None in the first call.
        """
        return x, carry

    def static_bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Return a term (H or 1, Tq, Tk) of the scores that depends on positions only, or None."""
        return None

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate queries (N, H, T, Dh) and keys (N, Hkv, T, Dh) at positions pos (T,)."""
        return q, k

    def query_bias(self, q: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Return a term (N, H, Tq, Tk) of the scores that depends on the queries, or None."""
        return None

    def value_term(self, weights: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        """Return a term (N, H, Tq, Dh) of the outputs that depends on the weights, or None."""
        return None
