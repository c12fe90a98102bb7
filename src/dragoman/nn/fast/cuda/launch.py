"""Where the kernels are used: on NVIDIA GPUs with Triton, which PyTorch for CUDA brings along on Linux."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
interprets = False
"""Whether tensors on the CPU use the kernels, too; for tests, with the interpreter of Triton."""


@cache
def kernels() -> Any:
    """Return the module of the kernels, or None without Triton."""
    if os.environ.get("DRAGOMAN_TRITON") == "0" or importlib.util.find_spec("triton") is None:
        return None
    from dragoman.nn.fast.cuda import kernels as module

    return module


@cache
def _is_supported(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def uses_triton(*tensors: Tensor) -> bool:
    """Return whether the kernels are used for these tensors, all on one device."""
    first = tensors[0]
    if not (first.is_cuda or (interprets and first.device.type == "cpu")):
        return False
    if kernels() is None or any(t.dtype not in _DTYPES or not t.numel() for t in tensors):
        return False
    return interprets or _is_supported(first.device)


def power_of_two(size: int, least: int = 16) -> int:
    """Return the smallest power of two that is at least `size` and at least `least`."""
    return max(least, 1 << (size - 1).bit_length())
