"""The processes that train together.  One process is the trivial world, so that nobody asks "am I distributed?"."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from dragoman.device import resolve_device
from dragoman.models.seq2seq import Network

__all__ = ["DistributedContext"]


class DistributedContext:
    """One process on one device; a world of several overrides every method."""

    rank = 0
    size = 1

    def __init__(self, device: str = "auto") -> None:
        """device: `auto` (a GPU where there is one), `cpu`, `cuda`, `cuda:1` ...  Raises `UsageError`."""
        self.device = resolve_device(device)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return values

    def peak_memory(self) -> int:
        """The most bytes this process held so far: of the GPU where it trains on one, else resident.

        0 where the system does not log, as on Windows.
        """
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        try:
            import resource
        except ImportError:
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def barrier(self) -> None:
        """Wait until every process is here."""

    def wrap(self, model: Network) -> torch.nn.Module:
        """The model whose `forward` keeps gradients the same in all processes."""
        return model

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """While accumulating: backward without exchanging gradients."""
        return nullcontext()
