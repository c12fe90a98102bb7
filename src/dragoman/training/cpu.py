"""Training on a CPU: the number of threads, whether the C++ kernels are used, and how glibc allocates memory.

The number changes the order of sums, and so the last bits of every step.  With a budget in steps, epochs or tokens, a
resumed run has to end with the same bytes, so that it keeps its number, which is stored in the run folder.  With a
budget in minutes, the result depends on the clock anyway, and the number changes when another one is faster.
Which kernels are used depends on the processor; a run that is resumed on another kind of processor is told so.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from dragoman.config import TrainConfig
from dragoman.device import usable_cores
from dragoman.errors import TrainingError
from dragoman.io.reading import read_json
from dragoman.io.run_log import Reporter
from dragoman.io.writing import write_file
from dragoman.nn.fast.native.library import has_kernel_products, kernels, lacks_kernels
from dragoman.training.distributed import DistributedContext

_FILE = "threads.json"
_SECONDS, _ROUNDS = 3.0, 5  # limits of a measurement
_SKIP_RATIO = 3.0  # a number this many times slower than the fastest is not measured again
_MIN_SPEEDUP = 1.1  # required of a larger number of threads, and of a number that replaces another one
_REPORTED_SPEEDUP = 1.3  # speedup from which a run that keeps its number reports another one
_INTERVAL, _SHARE = 120.0, 0.01  # seconds between measurements, at least; largest share of the time


def measure_threads(
    work: Callable[[], object], numbers: list[int], clock: Callable[[], float] = time.monotonic
) -> dict[int, float]:
    """Return the median seconds of a call of `work` with each number of threads, over several rounds.

    Each round begins with the current number and continues from the largest number to the smallest.  At least two
    numbers are measured.  Others are missing if the time limit is reached, or if they are below a number that is
    already much slower than a larger one.  The number of threads is restored.
    """
    before = torch.get_num_threads()
    seconds: dict[int, list[float]] = {}
    order = sorted(numbers, key=lambda number: (number != before, -number))
    try:
        work()  # the first call allocates memory
        began = clock()
        for _ in range(_ROUNDS):
            for number in order:
                torch.set_num_threads(number)
                start = clock()
                work()
                seconds.setdefault(number, []).append(clock() - start)
                fastest = min(seconds, key=lambda n: min(seconds[n]))
                if len(seconds) > 1 and clock() - began > _SECONDS:
                    return _medians(seconds)
                if number < fastest and min(seconds[number]) >= _SKIP_RATIO * min(seconds[fastest]):
                    break
            order = [n for n, found in seconds.items() if min(found) < _SKIP_RATIO * min(seconds[fastest])]
    finally:
        torch.set_num_threads(before)
    return _medians(seconds)


def _medians(seconds: dict[int, list[float]]) -> dict[int, float]:
    return {number: statistics.median(seconds[number]) for number in sorted(seconds)}


class ThreadControl:
    """Chooses and sets the number of threads of PyTorch while a run is trained.

    In this order: train.threads; the stored number of a run with a checkpoint; OMP_NUM_THREADS; the fastest measured
    number.
    """

    def __init__(self, folder: Path, config: TrainConfig, device: torch.device, reporter: Reporter) -> None:
        self._file, self._config, self._reporter = folder / _FILE, config, reporter
        self._on_cpu = device.type == "cpu"
        self._fixed = config.budget.unit != "seconds"
        self._before = torch.get_num_threads()
        self._limit = min(usable_cores(), self._before)
        self._numbers = [self._before]
        self._next, self._reported = float("inf"), False

    def start(self, work: Callable[[], object] | None, resumed: bool) -> None:
        """Set the number.  work: computes a part of a step without changing the model; None if no step follows.

        Raises TrainingError if the stored number of the run cannot be read.
        """
        wanted = self._config.threads
        if self._on_cpu:
            self._check_kernels(resumed)
        if wanted != "auto":
            if wanted > (cores := usable_cores()):
                omp = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
                limit = (
                    f"{cores} core{'s' * (cores > 1)} only{f' (OMP_NUM_THREADS={omp})' if omp == str(cores) else ''}"
                )
                self._reporter.warn(f"train.threads is {wanted}, but this process may use {limit}")
            self._set(wanted)
        elif self._on_cpu and self._fixed and resumed:
            number = self._read() or self._before  # runs of earlier versions stored no number
            self._numbers = sorted({number, *candidates(self._limit)})
            self._set(number)
            self._plan(0.0)
            if number != self._before:
                self._reporter.log(f"threads: {number}, as before in this run; to change that, set train.threads")
        elif self._on_cpu and work is not None:
            self._numbers = [self._before] if os.environ.get("OMP_NUM_THREADS") else candidates(self._limit)
            if len(self._numbers) == 1:
                self._set(self._numbers[0])
                return
            self._reporter.phase(f"measuring steps with {', '.join(map(str, self._numbers))} threads")
            seconds = self._measure(work)
            best = choose(seconds)
            self._set(best)
            speeds = ", ".join(f"{seconds[best] / s:.2f} with {n}" for n, s in seconds.items())
            self._reporter.log(f"threads: {best} (relative speed: {speeds})")

    def start_together(self, context: DistributedContext, resumed: bool) -> None:
        """Set the same number in several processes: train.threads, that of the run, or an equal share of the cores."""
        number: int | str = self._config.threads
        if not isinstance(number, int):
            keeps = resumed and self._fixed
            number = context.on_main(lambda: (self._read(context.size) if keeps else None) or self._before)
        if context.is_main:
            if self._on_cpu:
                self._check_kernels(resumed)
            self._reporter.log(f"threads: {number} in each of {context.size} processes")
            self._set(number, context.size)
        torch.set_num_threads(number)

    def recheck(self, work: Callable[[], object]) -> None:
        """Measure again if it is time to; change the number, or report a faster one if the run keeps its number."""
        if time.monotonic() < self._next:
            return
        now, seconds = torch.get_num_threads(), self._measure(work)
        best = choose(seconds)
        ratio = seconds[now] / seconds[best] if now in seconds else 1.0
        if not self._fixed and ratio > _MIN_SPEEDUP:
            torch.set_num_threads(best)
            self._reporter.log(f"threads: {best} instead of {now}, {ratio:.1f} times as fast at present")
        elif self._fixed and ratio > _REPORTED_SPEEDUP and not self._reported:
            self._reported = True
            self._reporter.warn(
                f"{best} thread{'s' * (best > 1)} would be {ratio:.1f} times as fast as {now} at present; the "
                f"run keeps {now}, so that its result can be reproduced. To change that, resume it with "
                f"train.threads={best}"
            )

    def restore(self) -> None:
        """Restore the number of threads that was set before the training."""
        torch.set_num_threads(self._before)

    def _measure(self, work: Callable[[], object]) -> dict[int, float]:
        began = time.monotonic()
        seconds = measure_threads(work, self._numbers)
        self._plan(time.monotonic() - began)
        return seconds

    def _plan(self, cost: float) -> None:
        if len(self._numbers) > 1:
            self._next = time.monotonic() + max(_INTERVAL, cost / _SHARE)

    def _set(self, number: int, processes: int = 1) -> None:
        stored: dict[str, int] = {"threads": number} | ({"processes": processes} if processes > 1 else {})
        if self._on_cpu:
            stored |= _implementation()
        write_file(self._file, f"{json.dumps(stored)}\n".encode())
        torch.set_num_threads(number)

    def _check_kernels(self, resumed: bool) -> None:
        """Warn if other kernels were used before in this run than now."""
        if lacks_kernels():
            self._reporter.warn(
                "the C++ kernels, which are faster than PyTorch's operations on this processor, were not built during "
                "installation; install a C++ compiler (g++) and reinstall Dragoman"
            )
        if not (resumed and self._fixed):
            return
        with suppress(TrainingError):  # `_read` reports a damaged file where it is needed
            stored, now = read_json(self._file, TrainingError, ""), _implementation()
            before = {key: bool(stored.get(key, stored.get("kernels"))) for key in now}
            if "kernels" in stored and before != now:
                self._reporter.warn(
                    f"this run was trained with {_describe(**before)} before, and continues with {_describe(**now)}, "
                    "as this installation does on this processor: the rounding errors will differ from those of an "
                    "uninterrupted run"
                )

    def _read(self, processes: int = 1) -> int | None:
        """Return the stored number; None if there is none, or if another number of processes trained the run."""
        if not self._file.exists():
            return None
        advice = "Remove it, and set train.threads to the number of threads that this run began with."
        stored = read_json(self._file, TrainingError, advice)
        if (before := stored.get("processes", 1)) != processes:
            self._reporter.warn(
                f"{before} processes have trained this run before, now {processes}: the size of a step changes with "
                "their number, unless train.accumulate compensates for it in a new run"
            )
            return None
        number = stored.get("threads")
        if type(number) is not int or not 1 <= number <= 1024:
            raise TrainingError(f"{self._file}: threads is {str(number)[:40]!r}, accepted: 1 to 1,024. {advice}")
        return number


def _implementation() -> dict[str, bool]:
    """Return which kernels are used, as `threads.json` stores it."""
    return {"kernels": kernels() is not None, "kernel_products": has_kernel_products()}


def _describe(kernels: bool, kernel_products: bool) -> str:
    if not kernels:
        return "PyTorch's operations"
    return "the C++ kernels" if kernel_products else "the C++ kernels except that of matrix products"


def candidates(limit: int) -> list[int]:
    """Return the numbers of threads to measure: powers of two, and the limit."""
    return sorted({limit} | {1 << i for i in range(limit.bit_length()) if 1 << i <= limit})


def choose(seconds: dict[int, float]) -> int:
    """Return the smallest number of threads that is at most 10 % slower than the fastest."""
    fastest = min(seconds.values())
    return min(number for number, found in seconds.items() if found <= _MIN_SPEEDUP * fastest)


# glibc maps each large block separately and unmaps it when it is freed, so that every step has page faults; but it
# raises the size from which it does so with every block that is freed, up to 32 MB.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def keep_freed_memory(keep: bool = True) -> bool:
    """Configure glibc to keep freed memory, which makes steps up to 1.5 times faster; False for another C library.

    keep: False = return freed blocks of 1 MiB or more.
    """
    mmap_threshold, trim_threshold = (1 << 30, (1 << 31) - 1) if keep else (1 << 20, 1 << 20)
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, mmap_threshold) and mallopt(_TRIM_THRESHOLD, trim_threshold))
