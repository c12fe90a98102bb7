"""Compact encoding of numbers from 0 to 1 for pages: one byte per number."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor


def as_bytes(weights: Tensor) -> Tensor:
    """Return round(255 w) as uint8 on the CPU; weights are clamped to [0, 1], which linear attention can exceed."""
    return (weights.detach().float().clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def packed(weights: Tensor) -> dict[str, Any]:
    """Return {"shape", "data"}: base64 of one byte per number in row-major order, for `packing.js`.

    weights: from 0 to 1, or bytes from `as_bytes`.
    """
    numbers = (weights if weights.dtype == torch.uint8 else as_bytes(weights)).contiguous()
    return {"shape": list(weights.shape), "data": base64.b64encode(numbers.numpy().tobytes()).decode("ascii")}
