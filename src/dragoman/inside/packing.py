"""Many numbers from 0 to 1 for a page, a byte each: what a colour shows, and a person reads to two decimals."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

__all__ = ["packed"]


def packed(weights: Tensor) -> dict[str, Any]:
    """{"shape", "data"}: base64 of round(255 w), a byte a number, the last axis running fastest, for web/packing.js.

    What is below 0 becomes 0, what is above 1 becomes 1 (only the weights that linear attention implies can be).
    """
    numbers = (weights.detach().float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous()
    return {"shape": list(weights.shape), "data": base64.b64encode(numbers.numpy().tobytes()).decode("ascii")}
