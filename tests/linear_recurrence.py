"""Causal linear attention as a recurrence, written out to test the implementation in chunks."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_linear_recurrence(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """S_i = S_(i-1) + k_i^T v_i, out_i = q_i S_i (Katharopoulos et al. 2020, equations 18 to 20)."""
    state = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None, :])  # (N, H, Dh, Dh)
    outputs = []
    for i in range(q.size(2)):
        state = state + k[:, :, i, :, None] * v[:, :, i, None, :]
        outputs.append(q[:, :, i, None, :] @ state)  # (N, H, 1, Dh)
    return torch.cat(outputs, dim=2)
