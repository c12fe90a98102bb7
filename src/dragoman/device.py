"""Devices such as "auto", "cpu" and "cuda:1"; and the number of cores that this process may use."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import UsageError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str | torch.device) -> torch.device:
    """Return the device called `name`: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", ..., or a torch.device.

    Raises UsageError if PyTorch does not know the name or cannot compute on the device.
    """
    import torch  # counting cores works without it

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


def usable_cores(root: str | Path = "/") -> int:
    """Return the number of cores that this process may use, at least 1.

    It is the minimum of the CPU affinity, the CPU quotas of the process's control group and its ancestors (a quota of
    1.5 cores counts as 2), and OMP_NUM_THREADS.  Values that cannot be read set no limit.  root: contains /proc and
    /sys.
    """
    limits = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for mount, group in _cgroups(Path(root)):
        for folder in (mount / group, *(mount / ancestor for ancestor in group.parents)):
            quota, period = _two_integers(folder / "cpu.max")
            if quota is None:  # version 1 of control groups
                quota, _ = _two_integers(folder / "cpu.cfs_quota_us")
                period, _ = _two_integers(folder / "cpu.cfs_period_us")
            if quota is not None and period is not None and quota > 0 and period > 0:
                limits.append(-(-quota // period))
    # The variable may hold a list with one value per level of nested parallelism; the outermost level applies.
    omp = re.fullmatch(r"\s*([0-9]{1,9})\s*", os.environ.get("OMP_NUM_THREADS", "").split(",")[0], re.ASCII)
    if omp and int(omp[1]) > 0:
        limits.append(int(omp[1]))
    return max(1, min(limits))


def _cgroups(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield possible mount points of CPU control groups with the path of this process's group in them."""
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        group = Path(path.lstrip("/"))
        if not controllers:  # version 2
            yield mounts, group
            yield mounts / "unified", group
        elif "cpu" in controllers.split(","):
            yield mounts / controllers, group
            yield mounts / "cpu", group


def _two_integers(file: Path) -> tuple[int | None, int | None]:
    """Return the first two fields of a file; None for a field that is not an integer, such as "max"."""
    try:
        fields = [*file.read_text(encoding="ascii").split(), "", ""]
    except (OSError, ValueError):
        return None, None
    first, second = (int(f) if re.fullmatch(r"[0-9]{1,18}", f, re.ASCII) else None for f in fields[:2])
    return first, second
