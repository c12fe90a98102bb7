"""The gradient of W^Q by the chain rule through the softmax, written out number by number, against autograd.

One head of self-attention on words x_t (t = 1 .. T), with an unknown loss L behind its outputs z_t:

    q_t = x_t W^Q        k_n = x_n W^K        v_n = x_n W^V
    beta_tn = q_t . k_n / sqrt(Dh)
    alpha_tn = exp(beta_tn) / sum over m of exp(beta_tm)
    z_t = sum over n of alpha_tn v_n

An element W^Q_ji affects q_t at i only, where it is multiplied by x_t at j.  Therefore (matrices are stored transposed)

    dL/dW^Q_ji = sum over t, r of dL/dz_t(r) * dz_t(r)/dq_t(i) * x_t(j)
    dz_t(r)/dq_t(i) = sum over n of v_n(r) * dalpha_tn/dq_t(i)
    dalpha_tn/dq_t(i) = sum over m of dalpha_tn/dbeta_tm * k_m(i) / sqrt(Dh)
    dalpha_tn/dbeta_tm = alpha_tn * (1 if n = m else 0) - alpha_tn * alpha_tm

The last sum runs over all m: q_t changes every score of its row, and a weight depends on all of them.
"""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from dragoman.nn.attention import SelfAttention, causal_bias
from dragoman.nn.positions import Positions
from small_networks import EXACT, drawn

T, D = 5, 6


def weights_of(q: list[list[float]], k: list[list[float]], seen: list[int]) -> list[list[float]]:
    """Weights alpha (T, T); position t attends to the first seen[t] positions."""
    alpha = []
    for t in range(T):
        scores = [sum(a * b for a, b in zip(q[t], k[n], strict=True)) / math.sqrt(D) for n in range(seen[t])]
        powers = [math.exp(beta) for beta in scores]
        alpha.append([power / sum(powers) for power in powers] + [0.0] * (T - seen[t]))
    return alpha


def times(matrix: list[list[float]], vectors: list[list[float]]) -> list[list[float]]:
    return [[sum(w * a for w, a in zip(row, x, strict=True)) for row in matrix] for x in vectors]


def gradient_by_hand(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, of_z: Tensor, seen: list[int]) -> Tensor:
    """dL/dW^Q, stored as (Dh, D), in Python floats; of_z (T, Dh) is dL/dz."""
    words = x.tolist()
    q, k, v = (times(w.tolist(), words) for w in (w_q, w_k, w_v))
    alpha = weights_of(q, k, seen)
    out = torch.zeros(D, D, dtype=torch.float64)
    for t, i in product(range(T), range(D)):
        of_q = 0.0  # dL/dq_t(i)
        for n, m in product(range(T), range(T)):
            of_beta = alpha[t][n] * (n == m) - alpha[t][n] * alpha[t][m]
            of_alpha = sum(float(of_z[t, r]) * v[n][r] for r in range(D))
            of_q += of_alpha * of_beta * k[m][i] / math.sqrt(D)
        for j in range(D):
            out[i, j] += of_q * words[t][j]
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_of_w_q_is_the_chain_rule(causal: bool) -> None:
    attention = drawn(SelfAttention(D, 1, bias=False), 0.8)
    x, pos = torch.randn(1, T, D, dtype=torch.float64), torch.arange(T)
    z: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor]) -> None:
        inputs[0].retain_grad()
        z.append(inputs[0])

    attention.out.register_forward_pre_hook(keep)
    bias = causal_bias(pos, pos, torch.float64) if causal else None
    attention(x, Positions(), pos, bias).pow(2).sum().backward()
    assert z[0].grad is not None and attention.qkv.weight.grad is not None
    seen = [t + 1 for t in range(T)] if causal else [T] * T
    w_q, w_k, w_v = attention.qkv.weight.detach().chunk(3)
    by_hand = gradient_by_hand(x[0], w_q, w_k, w_v, z[0].grad[0], seen)
    torch.testing.assert_close(by_hand, attention.qkv.weight.grad[:D], **EXACT)
    assert by_hand.abs().max() > 1e-3
