"""How many cores this process may use: affinity, the quota of its control group, and OMP_NUM_THREADS."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["usable_cores"]


def usable_cores(root: str | Path = "/") -> int:
    """Cores that this process may use, at least 1; root: where /proc and /sys are.

    The least of the processor affinity, the CPU quota of the process's control group and of those around it (a quota
    of 1.5 cores counts as 2), and OMP_NUM_THREADS.  What cannot be read sets no limit.
    """
    limits = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    limits += _quotas(Path(root))
    # A list has a number for each level of nested threads; ours is the outermost.
    asked = re.fullmatch(r"\s*([0-9]{1,9})\s*", os.environ.get("OMP_NUM_THREADS", "").split(",")[0], re.ASCII)
    if asked and int(asked[1]) > 0:
        limits.append(int(asked[1]))
    return max(1, min(limits))


def _quotas(root: Path) -> Iterator[int]:
    """Cores that control groups allow, of both versions; a group is limited by every group that contains it."""
    for mount, group in _groups(root):
        for folder in (mount / group, *(mount / above for above in group.parents)):
            quota, period = _numbers(folder / "cpu.max")
            if quota is None:
                (quota, _), (period, _) = _numbers(folder / "cpu.cfs_quota_us"), _numbers(folder / "cpu.cfs_period_us")
            if quota is not None and period is not None and quota > 0 and period > 0:
                yield -(-quota // period)


def _groups(root: Path) -> Iterator[tuple[Path, Path]]:
    """Where control groups that limit the processor may be mounted, and the path of this process's group in there."""
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        inside = Path(group.lstrip("/"))
        if not controllers:  # version 2
            yield mounts, inside
            yield mounts / "unified", inside
        elif "cpu" in controllers.split(","):
            yield mounts / controllers, inside
            yield mounts / "cpu", inside


def _numbers(file: Path) -> tuple[int | None, int | None]:
    """The first two words of a file as numbers; None where there is none, as in "max"."""
    try:
        words = [*file.read_text(encoding="ascii").split(), "", ""]
    except (OSError, ValueError):
        return None, None
    first, second = (int(w) if re.fullmatch(r"[0-9]{1,18}", w, re.ASCII) else None for w in words[:2])
    return first, second
