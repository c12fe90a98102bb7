"""Short calculations of the gallery: heads of two features, variances, positions, shares of weights."""

from __future__ import annotations

import cmath
import math
from itertools import product

import torch
from torch import Tensor, nn

from dragoman.config import PRESETS, TransformerConfig
from dragoman.errors import UsageError
from dragoman.models.build import assemble
from dragoman.nn.attention import AttentionTaps, SelfAttention, attend_explicit
from dragoman.nn.layers import LayerNorm
from dragoman.nn.positions import Learned, Positions, Rotary, sinusoids
from dragoman.nn.record import record
from dragoman.nn.taps import Tap


def short_examples() -> dict[str, Tensor]:
    """Return the computed matrices by the names that `gallery.toml` uses, in float64."""
    frequency = sinusoids(torch.tensor([1]), 4)[0, 2].asin()  # of the second of two pairs: base^(-1/2)
    half_turn, quarter_turn = -1 + 0j, 1j
    table = Learned(768, 512).table
    found = {
        "sums": [[nn.functional.one_hot(torch.tensor(2), 9).sum(), torch.tensor([2.0, 1.0, 0.0]).softmax(0).sum()]],
        "operations per number": [[312, 2, 4, 312e12 / (2e12 / 4)]],
        "heads of two features": [_weights_and_divisor(heads) for heads in (1, 2)],
        "variances": [_variances(size) for size in (1, 2, 4)],
        "feed-forward factor": [[PRESETS["base"]["d_ff"] / PRESETS["base"]["d_model"]]],
        "GELU": _gelu(torch.tensor([-2.0, -1, 0, 1, 2], dtype=torch.float64)).tolist(),
        "learned positions": [[*table.shape, _longest(Learned(768, 512)), table.numel()]],
        "base": [[float(1 / frequency) ** 2]],
        "turns": [
            [(quarter_turn**2).real, math.degrees(cmath.phase(half_turn)), math.degrees(cmath.phase(quarter_turn))]
        ],
        "smallest rotation": [[_smallest_rotation()]],
        "receptive field": [[_receptive_field(layers) for layers in (1, 2)]],
        "shares of the feed-forward network": [_feed_forward_shares()],
        "mean and variance of a norm": [_mean_and_variance(LayerNorm(4).double()(torch.arange(4.0).double()).detach())],
    }
    return {name: torch.tensor(rows, dtype=torch.float64) for name, rows in found.items()}


def _weights_and_divisor(heads: int, words: int = 3) -> list[float]:
    """Return the square of the divisor of the scores and the number of attention weights, for d = 2."""
    attention = SelfAttention(2, heads).double()
    x, pos = torch.arange(2.0 * words, dtype=torch.float64).reshape(1, words, 2), torch.arange(words)
    with torch.no_grad(), record(attention, "*") as seen:
        attention(x, Positions(), pos)
    products = seen["queries"][0] @ seen["keys"][0].transpose(-1, -2)
    ratio = (products.norm() / seen["scores"][0].norm()).item()
    return [ratio**2, seen["weights"][0].numel()]


def _variances(size: int) -> list[float]:
    """Return the variance of q · k and of the score, over all vectors of ±1: mean 0, variance 1, independent."""
    vectors = torch.tensor([*product((-1.0, 1.0), repeat=size)], dtype=torch.float64)[None, None]
    scores = Tap("row", "head", "query", "key")
    seen: list[Tensor] = []
    scores.register_forward_hook(lambda module, inputs, output: seen.append(output))
    attend_explicit(vectors, vectors, vectors, None, None, AttentionTaps(scores, Tap(), Tap()))
    products = vectors @ vectors.transpose(-1, -2)
    return [float(x.var(correction=0)) for x in (products, seen[0])]


def _gelu(x: Tensor) -> Tensor:
    """Return x, GELU(x) and its approximation as columns."""
    approximate = nn.functional.gelu(x, approximate="tanh")
    return torch.stack([x, nn.functional.gelu(x), approximate], dim=1)


def _longest(positions: Learned) -> int:
    """Return the number of tokens of the longest input that has positions."""
    length = 1
    try:
        while True:
            positions.ensure_length(length, positions.table)
            length += 1
    except UsageError:
        return length - 1


def _smallest_rotation() -> int:
    """Return the smallest number of features that can be rotated."""
    for size in range(8):
        try:
            return Rotary(size, 10_000.0).rotated
        except UsageError:
            continue
    raise AssertionError("no size can be rotated")


def _receptive_field(layers: int) -> int:
    """Return how many inputs reach one output of a stack of convolutions with kernels of 3."""
    x = torch.zeros(1, 1, 15)
    x[..., 7] = 1
    for _ in range(layers):
        x = nn.functional.conv1d(x, torch.ones(1, 1, 3), padding=1)
    return int(x.count_nonzero())


def _feed_forward_shares() -> list[float]:
    """Return the feed-forward network's share of the base model, and of the matrices of its two kinds of layers."""
    with torch.device("meta"):
        base = assemble(TransformerConfig.model_validate(PRESETS["base"]), 37_000, 37_000, shared=True)

    def matrices(part: str) -> tuple[int, int]:
        sizes = {name: p.numel() for name, p in base.named_parameters() if name.startswith(part) and p.dim() == 2}
        return sum(n for name, n in sizes.items() if ".ffn." in name), sum(sizes.values())

    layers = [matrices(f"{side}.layers.0.") for side in ("encoder", "decoder")]
    return [matrices("")[0] / base.parameter_count(), *(ffn / whole for ffn, whole in layers)]


def _mean_and_variance(x: Tensor) -> list[float]:
    return [float(x.mean()), float(x.var(correction=0))]
