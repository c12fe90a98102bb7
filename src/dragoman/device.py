"""Device names such as "auto", "cpu" and "cuda:1"."""

from __future__ import annotations

import warnings

import torch

from dragoman.errors import UsageError


def resolve_device(name: str | torch.device) -> torch.device:
    """Return the device called `name`: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ..., or a torch.device.

    Raises UsageError if PyTorch does not know the name or cannot compute on the device.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name = str(name)
    if name == "auto":
        return torch.device("cuda" if gpus else "cpu")
    accepted = ", ".join(["accepted: auto, cpu", *(["cuda"] if gpus else []), *(f"cuda:{i}" for i in range(gpus))])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns about names of removed devices
            device = torch.device(name)
    except RuntimeError:
        absent = "" if gpus else " (PyTorch finds no GPU on this machine)"
        raise UsageError(f"device {name!r}: no such device; {accepted}{absent}") from None
    if device.type == "cuda" and not gpus:
        raise UsageError(f"device {name!r}: PyTorch finds no GPU on this machine; {accepted}")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise UsageError(f"device {name!r}: this machine has {gpus} GPU{'s' * (gpus > 1)}; {accepted}")
    if device.type == "cuda" or (device.type == "cpu" and not device.index):
        return device
    try:  # another kind of accelerator, which may be absent; `meta` stores no values
        usable = device.type != "cpu" and float(torch.ones(1, device=device)) == 1
    except (RuntimeError, NotImplementedError, AssertionError, ImportError):
        usable = False
    if not usable:
        raise UsageError(f"device {name!r}: PyTorch cannot compute on it here; {accepted}")
    return device
