"""The processes that train together; a single process is the trivial case, so that callers need no case distinction."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from dragoman.device import resolve_device
from dragoman.models.seq2seq import Network

__all__ = ["DistributedContext"]


class DistributedContext:
    """One process on one device; a subclass for several processes overrides every method."""

    rank = 0

    def __init__(self, device: str = "auto") -> None:
        """device: as for `resolve_device`.  Raises UsageError."""
        self.device = resolve_device(device)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        return values

    def peak_memory(self) -> int:
        """Return the peak memory of this process in bytes: GPU memory if it trains on a GPU, else resident memory.

        0 on systems that do not report it, such as Windows.
        """
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        try:
            import resource
        except ImportError:
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def barrier(self) -> None:
        """Wait for all processes."""

    def wrap(self, model: Network) -> torch.nn.Module:
        """Return the module whose backward pass synchronizes gradients between processes."""
        return model

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return a context in which backward passes do not synchronize gradients, for accumulation."""
        return nullcontext()
