"""How far apart two words stand: schemes that act on the scores of attention and know distances only.

The distance of a key from a query is k_pos - q_pos, below 0 for what came before.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dragoman.nn.positions.seam import Positions

__all__ = ["T5", "Alibi", "Shaw", "alibi_slopes", "t5_bucket"]


class Shaw(Positions):
    """Trained vectors for distances -clip .. clip, one for keys and one for values, shared by the heads.

    Shaw et al. 2018: e_ij = q_i . (k_j + a^K_ij) / sqrt(Dh) (equation 4), z_i = sum_j w_ij (v_j + a^V_ij) (equation 3),
    a_ij = row clip(j - i) of a table (section 3.2).  No vector is written out for a pair of words: the queries meet the
    2 clip + 1 rows once and each score takes its own; the weights of equal distance are summed before they meet them.
    """

    needs_weights = True

    def __init__(self, d_head: int, clip: int) -> None:
        super().__init__()
        self.clip = clip
        self.keys = nn.Parameter(torch.empty(2 * clip + 1, d_head))
        self.values = nn.Parameter(torch.empty(2 * clip + 1, d_head))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Glorot uniform."""
        nn.init.xavier_uniform_(self.keys, generator=generator)
        nn.init.xavier_uniform_(self.values, generator=generator)

    def query_bias(self, q: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        scores = q @ self.keys.T / math.sqrt(q.size(-1))  # (N, H, Tq, 2 clip + 1)
        rows = self._rows(q_pos, k_pos)
        return scores.gather(-1, rows.expand(*q.shape[:-1], -1))  # (N, H, Tq, Tk)

    def value_term(self, weights: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        rows = self._rows(q_pos, k_pos).expand_as(weights)
        wide = torch.promote_types(weights.dtype, torch.float32)  # half a word is too short for a long sum
        by_row = weights.new_zeros(*weights.shape[:-1], 2 * self.clip + 1, dtype=wide)
        return by_row.scatter_add(-1, rows, weights.to(wide)).to(weights.dtype) @ self.values  # (N, H, Tq, Dh)

    def _rows(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return (k_pos[None, :] - q_pos[:, None]).clamp(-self.clip, self.clip) + self.clip  # (Tq, Tk)


def t5_bucket(distance: Tensor, bidirectional: bool, buckets: int, max_distance: int) -> Tensor:
    """The bucket of each distance k_pos - q_pos (integers of any shape), by Raffel et al. 2020, section 2.1.

    Half of the buckets are for one distance each, the others grow with its logarithm up to max_distance, and what is
    farther shares the last.  Bidirectional: the upper half of all buckets is for later words; else those count as 0.
    """
    if bidirectional:
        buckets //= 2
        side, far = (distance > 0) * buckets, distance.abs()
    else:
        side, far = torch.zeros_like(distance), (-distance).clamp(min=0)
    exact = buckets // 2
    # float32 in this order of operations, as in the released code: the models were trained with its rounding.
    logarithm = torch.log(far.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    shared = exact + (logarithm * (buckets - exact)).long()
    return side + torch.where(far < exact, far, shared.clamp(max=buckets - 1))


class T5(Positions):
    """A trained number for each head and bucket of distances, added to the scores (Raffel et al. 2020, section 2.1)."""

    def __init__(self, n_heads: int, buckets: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.table = nn.Parameter(torch.empty(buckets, n_heads))
        self.reset()

    def reset(self, generator: torch.Generator | None = None) -> None:
        """N(0, 0.02^2): next to nothing beside scores of variance 1; unlike a vector, a number is soon learned."""
        nn.init.normal_(self.table, std=0.02, generator=generator)

    def static_bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        distance = k_pos[None, :] - q_pos[:, None]  # (Tq, Tk)
        rows = t5_bucket(distance, self.bidirectional, self.table.size(0), self.max_distance)
        return nn.functional.embedding(rows, self.table).permute(2, 0, 1).contiguous()  # (H, Tq, Tk)


def alibi_slopes(n_heads: int) -> list[float]:
    """m_h = 2^(-8h / H) for h = 1 .. H; other head counts than powers of two take every second one of twice as many.

    Press et al. 2022, section 3, and their code: the H' = 2^floor(log2 H) slopes of H' heads come first, then as many
    as are missing from those of 2 H' heads, the first, the third and so on.
    """
    power = 1 << (n_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * (n_heads - power), 2)]


class Alibi(Positions):
    """-m_h |i - j| is added to the scores: each head fades with the distance at its own rate (Press et al. 2022).

    Nothing is trained.  An encoder sees both sides alike; the mask of later words is not made here.
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(n_heads)), persistent=False)
        self.slopes: Tensor

    def static_bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        distance = (k_pos[None, :] - q_pos[:, None]).abs()
        # Half a word does not hold every distance.
        wide = self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))
        return (wide[:, None, None] * -distance).to(self.slopes.dtype)  # (H, Tq, Tk)
