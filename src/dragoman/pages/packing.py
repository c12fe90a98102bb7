"""Many numbers from 0 to 1 for a page, a byte each: what a colour shows, and a person reads to two decimals."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

__all__ = ["as_bytes", "packed"]


def as_bytes(weights: Tensor) -> Tensor:
    """round(255 w) as uint8 on the CPU; below 0 becomes 0, above 1 becomes 1, which linear attention can imply."""
    return (weights.detach().float().clamp(0, 1) * 255).round().to(torch.uint8).cpu()


def packed(weights: Tensor) -> dict[str, Any]:
    """{"shape", "data"}: base64 of round(255 w), a byte a number, the last axis running fastest, for web/packing.js.

    weights: from 0 to 1, or bytes from `as_bytes`.
    """
    numbers = (weights if weights.dtype == torch.uint8 else as_bytes(weights)).contiguous()
    return {"shape": list(weights.shape), "data": base64.b64encode(numbers.numpy().tobytes()).decode("ascii")}
