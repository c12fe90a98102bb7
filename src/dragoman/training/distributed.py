"""The processes that train together.  One process is the trivial world, so that nobody asks "am I distributed?"."""

from __future__ import annotations

import sys
import warnings
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from dragoman.errors import UsageError
from dragoman.models.seq2seq import Network

__all__ = ["DistributedContext"]


class DistributedContext:
    """One process on one device; a world of several overrides every method."""

    rank = 0
    size = 1

    def __init__(self, device: str = "auto") -> None:
        """device: `auto` (a GPU where there is one), `cpu`, `cuda`, `cuda:1` ...  Raises `UsageError`."""
        self.device = _usable(device)

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


def _usable(name: str) -> torch.device:
    """The device of this name, on which numbers can be computed here."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    accepted = ", ".join(["accepted: auto, cpu", *(["cuda"] if gpus else []), *(f"cuda:{i}" for i in range(gpus))])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # names of devices that PyTorch no longer has
            device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"device {name!r}: no such device; {accepted}") from None
    if device.type == "cuda" and not gpus:
        raise UsageError(f"device {name!r}: PyTorch finds no GPU on this machine; {accepted}")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UsageError(f"device {name!r}: this machine has {gpus} GPU{'s' * (gpus > 1)}; {accepted}")
    if device.type == "cuda" or (device.type == "cpu" and not device.index):
        return device
    try:  # another kind of accelerator, which may or may not be here; `meta` holds no numbers
        usable = device.type != "cpu" and float(torch.ones(1, device=device)) == 1
    except (RuntimeError, NotImplementedError, AssertionError, ImportError):
        usable = False
    if not usable:
        raise UsageError(f"device {name!r}: PyTorch cannot compute on it here; {accepted}")
    return device
