"""Self-attention without a softmax, at a cost that grows with the length and not with its square.

    out_i = phi(q_i)^T S_i / (phi(q_i)^T z_i),    S_i = sum_j psi(k_j) v_j^T,    z_i = sum_j psi(k_j)

(Katharopoulos et al. 2020, equations 4 to 12).  The sums go over all keys, or in a causal attention over j <= i: then S
and z are the hidden state of a recurrent network, of one size at every length.  The weights that this implies,
phi(q_i) . psi(k_j) over its sum, are positive and sum to 1, but before a causal mask their matrix has at most rank Dh.

A causal sum has three ways to the same numbers: `causal_linear_attention` goes by chunks (training) or by one position
(decoding), `causal_linear_attention_plain` is the recurrence written out.

Letters: N rows, H heads, T positions, S source length, C chunks, D d_model, Dh head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman.nn.attention import MultiHead
from dragoman.nn.positions import Positions
from dragoman.nn.state import LinearSums

__all__ = [
    "FEATURE_MAPS",
    "FeatureMap",
    "LinearSelfAttention",
    "causal_linear_attention",
    "causal_linear_attention_plain",
]

_CHUNK = 64
"""Positions between which weights are made: as many as a usual head is wide balances the two products."""


@dataclass(frozen=True)
class FeatureMap:
    """phi of queries and psi of keys, both positive, and how queries are divided by the keys' sum z.

    divide: phi(q) (N, H, T, Dh) and z (N, H, T or 1, Dh) -> queries whose weights sum to 1.
    """

    of_queries: Callable[[Tensor], Tensor]
    of_keys: Callable[[Tensor], Tensor]
    divide: Callable[[Tensor, Tensor], Tensor]


def _elu_plus_one(x: Tensor) -> Tensor:
    """x + 1 above 0 and e^x below, where elu(x) + 1 would be 0 in float32 from -17 on."""
    return x.clamp(max=0).exp() + F.relu(x)


def _relu_plus(x: Tensor) -> Tensor:
    return F.relu(x) + 1e-3


def _divide_rows(q: Tensor, keys: Tensor) -> Tensor:
    sums: Tensor = torch.linalg.vecdot(q, keys)  # (N, H, T)
    return q / sums.unsqueeze(-1)


FEATURE_MAPS: dict[str, FeatureMap] = {
    # Katharopoulos et al. 2020, equation 7.
    "elu": FeatureMap(_elu_plus_one, _elu_plus_one, _divide_rows),
    # Choromanski et al. 2021, generalized attention; the small number keeps a row from having no weights at all.
    "relu": FeatureMap(_relu_plus, _relu_plus, _divide_rows),
    # Shen et al. 2021: queries by a softmax over their features, each feature of the keys by one over the positions in
    # sight.  The bounds keep running sums within float32; a softmax of theirs spans a factor of e^60.
    "softmax": FeatureMap(lambda q: q.softmax(-1), lambda k: k.clamp(-30, 30).exp(), lambda q, keys: q / keys),
}


def causal_linear_attention(q: Tensor, k: Tensor, v: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """sum_(j <= i) (q_i . k_j) v_j of (N, H, T, Dh) each, and the sum of k_j v_j^T (N, H, Dh, Dh) up to the end.

    before: that sum over earlier positions, or None.  Weights are made within a chunk; what came before a chunk reaches
    it through the sum, so that time and memory grow with T.
    """
    t = q.size(2)
    if t == 1:
        total = k.transpose(-1, -2) @ v
        total = total if before is None else before + total
        return q @ total, total
    size = min(_CHUNK, t)
    if t % size:
        q, k, v = (F.pad(x, (0, 0, 0, -t % size)) for x in (q, k, v))
    q, k, v = (x.unflatten(2, (-1, size)) for x in (q, k, v))  # (N, H, C, T / C, Dh)
    own = k.transpose(-1, -2) @ v  # (N, H, C, Dh, Dh)
    first = torch.zeros_like(own[:, :, 0]) if before is None else before
    sums = torch.cat([first.unsqueeze(2), own], dim=2).cumsum(2)  # (N, H, 1 + C, Dh, Dh)
    out = (q @ k.transpose(-1, -2)).tril() @ v + q @ sums[:, :, :-1]
    return out.flatten(2, 3)[:, :, :t], sums[:, :, -1]


def causal_linear_attention_plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same outputs as a recurrence: S_i = S_(i-1) + k_i v_i^T, out_i = q_i^T S_i (equations 18 to 20)."""
    state = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None, :])  # (N, H, Dh, Dh)
    outputs = []
    for i in range(q.size(2)):
        state = state + k[:, :, i, :, None] * v[:, :, i, None, :]
        outputs.append(q[:, :, i, None, :] @ state)  # (N, H, 1, Dh)
    return torch.cat(outputs, dim=2)


class LinearSelfAttention(MultiHead):
    """As `SelfAttention`, without scores: positions that need them (Shaw, T5, ALiBi) do not go with it.

    Rotary positions turn the features where they meet the values and not in the divisor (Su et al. 2021, section 3.3):
    their weights need not sum to 1.  Recorded weights are made explicitly; with a cache there is nothing to record, for
    sums do not know single keys.
    """

    def __init__(self, d_model: int, n_heads: int, feature_map: str, bias: bool = True) -> None:
        super().__init__(d_model, n_heads, bias)
        self.feature_map = FEATURE_MAPS[feature_map]
        self.parts = (d_model, d_model, d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=bias)

    def new_cache(self, rows: int, max_len: int, like: Tensor) -> LinearSums:
        """An empty memory for `rows` rows: of one size, whatever max_len is."""
        return LinearSums(rows, self.n_heads, self.d_head, like)

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        pos: Tensor,
        bias: Tensor | None = None,
        causal: bool = False,
        cache: LinearSums | None = None,
    ) -> Tensor:
        """x (N, T, D) at positions pos (T,) -> (N, T, D).

        bias: (N, 1, 1, T), 0 and -inf, or None.  With a cache, which holds what came before, always causal.  Raises
        `ValueError` for a bias, or positions, that change single scores.
        """
        if positions.needs_weights or (bias is not None and bias.shape[-3:] != (1, 1, x.size(1))):
            raise ValueError("linear attention makes no scores that positions or a bias over queries could change")
        q, k, v = self.split(self.qkv(x), self.parts)  # (N, H, T, Dh)
        wide = torch.promote_types(q.dtype, torch.float32)  # half a word is too short for a long sum
        with torch.autocast(q.device.type, enabled=False):
            keep = None if bias is None else (bias == 0).transpose(-1, -2)  # (N, 1, T, 1)
            q, k, v = self.queries(q.to(wide)), self.keys(k.to(wide)), self.values(v.to(wide))
            out = self._attend(q, k, v, positions, pos, keep, causal, cache)
        return self.join(out.to(x.dtype))

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Positions,
        pos: Tensor,
        keep: Tensor | None,
        causal: bool,
        cache: LinearSums | None,
    ) -> Tensor:
        q, k = self.feature_map.of_queries(q), self.feature_map.of_keys(k)
        if keep is not None:
            k = k * keep
        causal = causal or cache is not None
        keys = k.cumsum(2) if causal else k.sum(2, keepdim=True)  # (N, H, T or 1, Dh)
        if cache is not None:
            keys = cache.keys + keys
        q, k = positions.rotate(self.feature_map.divide(q, keys), k, pos)
        if self.weights.active and cache is None:
            weights = q @ k.transpose(-1, -2)
            recorded: Tensor = self.weights(weights.tril() if causal else weights)
            if self.weights.is_intervened:
                return recorded @ v
        if not causal:
            return q @ (k.transpose(-1, -2) @ v)
        out, keys_values = causal_linear_attention(q, k, v, None if cache is None else cache.keys_values)
        if cache is not None:
            cache.keys_values, cache.keys = keys_values, keys[:, :, -1:]
        return out
