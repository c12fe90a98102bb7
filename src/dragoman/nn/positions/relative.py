"""Relative positions: schemes that act on attention scores and depend on distances only.

The distance of a key from a query is k_pos - q_pos, negative for earlier keys.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dragoman.nn.positions.scheme import Positions

__all__ = ["T5", "Alibi", "Shaw", "alibi_slopes", "t5_bucket"]


class Shaw(Positions):
    """Trained vectors for the distances -clip .. clip, one table for keys and one for values, shared by the heads.

    Shaw et al. 2018: e_ij = q_i . (k_j + a^K_ij) / sqrt(Dh) (equation 4), z_i = sum_j w_ij (v_j + a^V_ij) (equation 3),
    a_ij = row clip(j - i) of a table (section 3.2).  No vector is stored per pair of positions: queries are multiplied
    by the 2 clip + 1 rows once and scores gathered from the result; weights of equal distance are summed before they
    are multiplied by the rows.
    """

    needs_weights = True

    def __init__(self, d_head: int, clip: int) -> None:
        super().__init__()
        self.clip = clip
        self.keys = nn.Parameter(torch.empty(2 * clip + 1, d_head))
        self.values = nn.Parameter(torch.empty(2 * clip + 1, d_head))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        nn.init.xavier_uniform_(self.keys, generator=generator)
        nn.init.xavier_uniform_(self.values, generator=generator)

    def query_bias(self, q: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        scores = q @ self.keys.T / math.sqrt(q.size(-1))  # (N, H, Tq, 2 clip + 1)
        rows = self._rows(q_pos, k_pos)
        return scores.gather(-1, rows.expand(*q.shape[:-1], -1))  # (N, H, Tq, Tk)

    def value_term(self, weights: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        rows = self._rows(q_pos, k_pos).expand_as(weights)
        dtype = torch.promote_types(weights.dtype, torch.float32)  # 16 bits are too imprecise for a long sum
        by_row = weights.new_zeros(*weights.shape[:-1], 2 * self.clip + 1, dtype=dtype)
        return by_row.scatter_add(-1, rows, weights.to(dtype)).to(weights.dtype) @ self.values  # (N, H, Tq, Dh)

    def _rows(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return (k_pos[None, :] - q_pos[:, None]).clamp(-self.clip, self.clip) + self.clip  # (Tq, Tk)


def t5_bucket(distance: Tensor, bidirectional: bool, buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance k_pos - q_pos (integers of any shape; Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each; the others grow logarithmically up to max_distance, and larger distances
    share the last.  Bidirectional: the upper half of all buckets is for later keys; else those have distance 0.
    """
    if bidirectional:
        buckets //= 2
        offset, size = (distance > 0) * buckets, distance.abs()
    else:
        offset, size = torch.zeros_like(distance), (-distance).clamp(min=0)
    exact = buckets // 2
    # float32 in this order of operations, as in the released code, whose rounding its models were trained with.
    logarithm = torch.log(size.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    shared = exact + (logarithm * (buckets - exact)).long()
    return offset + torch.where(size < exact, size, shared.clamp(max=buckets - 1))


class T5(Positions):
    """A trained score for each head and bucket of distances (Raffel et al. 2020, section 2.1)."""

    def __init__(self, n_heads: int, buckets: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.table = nn.Parameter(torch.empty(buckets, n_heads))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Initialize with N(0, 0.02^2), negligible compared with scores of variance 1; a scalar is learned quickly."""
        nn.init.normal_(self.table, std=0.02, generator=generator)

    def static_bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        distance = k_pos[None, :] - q_pos[:, None]  # (Tq, Tk)
        rows = t5_bucket(distance, self.bidirectional, self.table.size(0), self.max_distance)
        return nn.functional.embedding(rows, self.table).permute(2, 0, 1).contiguous()  # (H, Tq, Tk)


def alibi_slopes(n_heads: int) -> list[float]:
    """Return m_h = 2^(-8h / H) for h = 1 .. H (Press et al. 2022, section 3, and the authors' code).

    If H is not a power of two, the slopes of the largest power H' below H come first, followed by every second slope
    of 2 H' heads, starting with the first.
    """
    power = 1 << (n_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * (n_heads - power), 2)]


class Alibi(Positions):
    """Scores reduced by m_h |i - j|, with a fixed slope m_h per head (Press et al. 2022).

    An encoder treats both directions alike; the causal mask is not part of this bias.
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(n_heads)), persistent=False)
        self.slopes: Tensor

    def static_bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        distance = (k_pos[None, :] - q_pos[:, None]).abs()
        slopes = self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))  # 16 bits round large distances
        return (slopes[:, None, None] * -distance).to(self.slopes.dtype)  # (H, Tq, Tk)
