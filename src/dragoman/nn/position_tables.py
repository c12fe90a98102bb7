"""Position tables in NumPy, for the native engine, which works without PyTorch; the numbers of `nn/positions.py`.

Legend: P positions, H heads, D d_model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def sinusoid_table(count: int, d_model: int, full_range: bool = False) -> NDArray[np.float32]:
    """Return the sinusoids of the positions below `count`, (P, D); see `nn.positions.sinusoids`."""
    # The power of Python differs from PyTorch's in fewer rates than that of NumPy; an angle multiplies a difference.
    span = max(1, d_model - 2) if full_range else d_model
    rates = np.array([10000.0 ** (-k / span) for k in range(0, d_model, 2)])
    angles = np.arange(count)[:, None] * rates  # (P, D/2)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(count, d_model).astype(np.float32)


def rotations(count: int, base: float, rotated: int, scaling: Sequence[float] = ()) -> tuple[Floats, Floats]:
    """Return cosines and sines of the angles of `nn.positions.Rotary`, (P, rotated / 2) each, in float64."""
    rates = scaled_rates(base ** (-np.arange(0, rotated, 2) / rotated), scaling)
    angles = np.arange(count)[:, None] * rates
    return np.cos(angles), np.sin(angles)


def scaled_rates(rates: Floats, scaling: Sequence[float]) -> Floats:
    """Return the angles of rotary positions per token, for longer texts than those of the training before.

    scaling: () for the same rates; a factor, by which all are divided; or, as in Llama 3.1, factor, low, high and
    length: rates with wavelengths above length / low are divided, those below length / high stay the same, and in
    between both are mixed.
    """
    if not scaling:
        return rates
    factor, *bounds = scaling
    if not bounds:
        return rates / factor
    low, high, length = bounds
    kept = np.clip((length * rates / (2 * math.pi) - low) / (high - low), 0, 1)  # length / wavelength
    mixed: Floats = (1 - kept) * rates / factor + kept * rates
    return mixed


def t5_biases(table: Floats, distances: NDArray[np.int64], max_distance: int, bidirectional: bool) -> Floats:
    """Return the score of each distance k_pos - q_pos for each head, (H, distances), of a table (buckets, H)."""
    # See `nn.positions.t5_bucket`; float32 in the same order of operations.
    buckets = len(table)
    if bidirectional:
        buckets //= 2
        offset, size = (distances > 0) * buckets, np.abs(distances)
    else:
        offset, size = np.zeros_like(distances), np.maximum(-distances, 0)
    exact = buckets // 2
    ratio = np.maximum(size, 1).astype(np.float32) / np.float32(exact)
    # Rounded once from float64: the float32 logarithm of NumPy depends on the instructions of the processor.
    logarithm = np.log(ratio.astype(np.float64)).astype(np.float32) / np.float32(math.log(max_distance / exact))
    shared = exact + (logarithm * np.float32(buckets - exact)).astype(np.int64)
    rows: NDArray[np.int64] = offset + np.where(size < exact, size, np.minimum(shared, buckets - 1))
    return table[rows].T


def alibi_slopes(n_heads: int) -> list[float]:
    """Return m_h = 2^(-8h / H) for h = 1 .. H (Press et al. 2022, section 3, and the authors' code).

    If H is not a power of two, the slopes of the largest power H' below H come first, followed by every second slope
    of 2 H' heads, starting with the first.
    """
    power = 1 << (n_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * (n_heads - power), 2)]


def alibi_biases(n_heads: int, distances: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the term of the scores for each distance k_pos - q_pos and head, (H, distances)."""
    slopes = np.array(alibi_slopes(n_heads), np.float32)
    return slopes[:, None] * (-np.abs(distances)).astype(np.float32)
