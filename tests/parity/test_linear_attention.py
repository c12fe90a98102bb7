"""Linear attention against the quadratic formula, and its causal implementations against each other, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.nn.attention import causal_bias, mask_to_bias
from dragoman.nn.linear_attention import FEATURE_MAPS, LinearSelfAttention, causal_linear_attention
from dragoman.nn.positions import Positions, Rotary
from dragoman.nn.state import LinearSums
from small_networks import EXACT, causal_linear_recurrence, drawn, random

N, H, T, DH = 3, 4, 7, 6
LONG = 150
"""More than two chunks, and not a multiple of the chunk size."""
D = H * DH


def made(kind: str) -> LinearSelfAttention:
    return drawn(LinearSelfAttention(D, H, kind), 0.4)


def padding(length: int) -> Tensor:
    """(N, length): True = a token; the first sentence has no padding."""
    return torch.arange(length) < torch.tensor([length, length // 2, length - 1])[:, None]


def weights_by_hand(kind: str, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    """(N, H, T, T) from the definition; seen (N, 1, T, T): True where a query may attend."""
    if kind == "softmax":
        # Softmax of each query over its features and of each feature over the visible keys: a sum of Dh softmaxes.
        of_keys = k.transpose(-1, -2)[:, :, None].masked_fill(~seen[:, :, :, None], -torch.inf).softmax(-1)
        return torch.einsum("nhtf,nhtfs->nhts", q.softmax(-1), of_keys)
    phi: dict[str, Callable[[Tensor], Tensor]] = {"elu": lambda x: F.elu(x) + 1, "relu": lambda x: x.relu() + 1e-3}
    scores = (phi[kind](q) @ phi[kind](k).transpose(-1, -2)).masked_fill(~seen, 0)
    return scores / scores.sum(-1, keepdim=True)


def sight(length: int, causal: bool, padded: bool) -> Tensor:
    """(N, 1, T, T): True where a query may attend."""
    seen = torch.ones(N, 1, length, length, dtype=torch.bool)
    if padded:
        seen = seen & padding(length)[:, None, None, :]
    return seen.tril() if causal else seen


def by_hand(attention: LinearSelfAttention, kind: str, x: Tensor, seen: Tensor) -> Tensor:
    n, t, _ = x.shape
    q, k, v = attention.qkv(x).view(n, t, 3, H, DH).permute(2, 0, 3, 1, 4)
    mixed = weights_by_hand(kind, q, k, seen) @ v
    out: Tensor = attention.out(mixed.transpose(1, 2).reshape(n, t, D))
    return out


@pytest.mark.parametrize("kind", FEATURE_MAPS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [T, LONG])
def test_values_and_gradients_are_the_quadratic_formulas(kind: str, causal: bool, padded: bool, length: int) -> None:
    attention, x = made(kind), random(N, length, D).requires_grad_()
    bias = mask_to_bias(padding(length)[:, None, None, :], torch.float64) if padded else None
    words = padding(length) if padded else torch.ones(N, length, dtype=torch.bool)
    upstream = random(N, length, D) * words[..., None]
    results = []
    for out in (
        attention(x, Positions(), torch.arange(length), bias, causal),
        by_hand(attention, kind, x, sight(length, causal, padded)),
    ):
        found = torch.autograd.grad(out, [x, *attention.parameters()], upstream)
        results.append([out[words], *found])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, **EXACT)


@pytest.mark.parametrize("length", [1, 5, 64, 65, 128, LONG])
def test_chunks_recurrence_and_quadratic_sum_are_the_same(length: int) -> None:
    q, k, v = (random(N, H, length, DH).requires_grad_() for _ in range(3))
    ways: dict[str, Callable[[], Tensor]] = {
        "chunks": lambda: causal_linear_attention(q, k, v)[0],
        "plain": lambda: causal_linear_recurrence(q, k, v),
        "square": lambda: (q @ k.transpose(-1, -2)).tril() @ v,
    }
    upstream = random(N, H, length, DH)
    results = [[out := way(), *torch.autograd.grad(out, [q, k, v], upstream)] for way in ways.values()]
    scale = {"rtol": 1e-12, "atol": 1e-10}  # sums of 150 products of unbounded numbers
    for other in results[1:]:
        for got, want in zip(results[0], other, strict=True):
            torch.testing.assert_close(got, want, **scale)


@pytest.mark.parametrize("cut", [1, 3, 64, 70, LONG - 1])
def test_sums_continue_from_a_stored_state(cut: int) -> None:
    q, k, v = (random(N, H, LONG, DH) for _ in range(3))
    whole, total = causal_linear_attention(q, k, v)
    first, before = causal_linear_attention(q[:, :, :cut], k[:, :, :cut], v[:, :, :cut])
    second, after = causal_linear_attention(q[:, :, cut:], k[:, :, cut:], v[:, :, cut:], before)
    torch.testing.assert_close(torch.cat([first, second], 2), whole, **EXACT)
    torch.testing.assert_close(after, total, **EXACT)
    torch.testing.assert_close(total, k.transpose(-1, -2) @ v, **EXACT)


def test_memory_does_not_grow_with_the_length() -> None:
    attention, x = made("elu"), random(N, T, D)
    short, long = attention.new_cache(N, 8, like=x), attention.new_cache(N, 8000, like=x)
    assert isinstance(short, LinearSums) and short.nbytes() == long.nbytes() == N * H * (DH * DH + DH) * 8
    for t in range(T):
        attention(x[:, t : t + 1], Positions(), torch.tensor([t]), None, False, short)
        assert short.nbytes() == long.nbytes()


@pytest.mark.parametrize("causal", [False, True])
def test_rotary_rotates_only_the_numerator(causal: bool) -> None:
    attention, x, rotary = made("elu"), random(N, T, D), Rotary(DH, 10000.0)
    q, k, v = attention.qkv(x).view(N, T, 3, H, DH).permute(2, 0, 3, 1, 4)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    seen = sight(T, causal, False)
    turned, turned_k = rotary.rotate(q, k, torch.arange(T))
    above = (turned @ turned_k.transpose(-1, -2)).masked_fill(~seen, 0)
    below = (q @ k.transpose(-1, -2)).masked_fill(~seen, 0).sum(-1, keepdim=True)
    want = attention.out((above / below @ v).transpose(1, 2).reshape(N, T, D))
    torch.testing.assert_close(attention(x, rotary, torch.arange(T), None, causal), want, **EXACT)


def test_linear_attention_refuses_biases_of_single_scores() -> None:
    class WithTerms(Positions):
        needs_weights = True

    attention, x, pos = made("elu"), random(N, T, D), torch.arange(T)
    one = torch.zeros(N, 1, 1, T + 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="has no scores"):
        attention(x, WithTerms(), pos)
    for bias in (causal_bias(pos, pos, x.dtype), random(H, T, T), random(N, H, 1, T), one):
        with pytest.raises(ValueError, match="has no scores"):
            attention(x, Positions(), pos, bias)


def test_features_stay_positive_in_float32() -> None:
    far = torch.tensor([-80.0, -30.0, -17.5, 0.0, 5.0, 200.0])
    for kind, maps in FEATURE_MAPS.items():
        assert (maps.keys(far) > 0).all() and maps.keys(far).isfinite().all(), kind
    torch.testing.assert_close(FEATURE_MAPS["elu"].keys(far.double()), F.elu(far.double()) + 1, **EXACT)


def test_features_of_a_softmax_are_bounded() -> None:
    keys = FEATURE_MAPS["softmax"].keys(torch.tensor([-99.0, -30.0, -1.0, 0.0, 30.0, 99.0]))

    assert keys.log().tolist() == pytest.approx([-30, -30, -1, 0, 30, 30], abs=1e-5)


def test_sums_are_kept_in_float32_under_autocast() -> None:
    attention, x = LinearSelfAttention(D, H, "elu"), torch.randn(N, LONG, D)
    cache = attention.new_cache(N, LONG, like=x.bfloat16())
    assert cache.keys.dtype == cache.keys_values.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        half = attention(x, Positions(), torch.arange(LONG), None, True, cache)
        _, k, v = attention.qkv(x).float().view(N, LONG, 3, H, DH).permute(2, 0, 3, 1, 4)
    want = (F.elu(k) + 1).transpose(-1, -2) @ v  # the terms are bfloat16, their sums are not
    torch.testing.assert_close(cache.keys_values, want, rtol=0.0, atol=1e-3)
    whole = attention(x, Positions(), torch.arange(LONG), None, True)
    torch.testing.assert_close(half.float(), whole, rtol=0.0, atol=0.05)
