"""Where the tasks of preparation run: in this process, in several, or on a Ray cluster."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from dragoman.errors import DragomanError
from dragoman.extras import extra_package
from dragoman.processor import usable_cores

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class WorkerPool(Protocol):
    """Computes a function of many tasks."""

    def map(self, function: Callable[[_Task], _Result], tasks: Iterator[_Task]) -> Iterator[_Result]:
        """Yield the results in the order of the tasks.  Few tasks are taken from the iterator ahead of the results."""
        ...


class ThisProcess:
    """No other process, which is faster for little text."""

    def map(self, function: Callable[[_Task], _Result], tasks: Iterator[_Task]) -> Iterator[_Result]:
        return map(function, tasks)


class Processes(AbstractContextManager["Processes"]):
    """Processes of this machine."""

    def __init__(self, count: int | None = None) -> None:
        """count: of processes; default: one per available core."""
        self._count = count or usable_cores()
        self._executor: Any = None

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(kill_workers=True)

    def map(self, function: Callable[[_Task], _Result], tasks: Iterator[_Task]) -> Iterator[_Result]:
        # Unlike the executor of the standard library, it does not import `__main__`.
        from loky import ProcessPoolExecutor  # type: ignore[import-untyped]
        from loky.process_executor import TerminatedWorkerError  # type: ignore[import-untyped]

        if self._executor is None:
            self._executor = ProcessPoolExecutor(self._count)
        pending: deque[Any] = deque()
        try:
            for task in tasks:
                pending.append(self._executor.submit(function, task))
                if len(pending) > self._count + 1:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except TerminatedWorkerError as error:
            raise DragomanError(
                f"a process that prepares the data ended: {str(error).splitlines()[0]} If the memory was exhausted, "
                "use fewer processes: dragoman prepare CONFIG --workers 1."
            ) from None


class RayTasks(AbstractContextManager["RayTasks"]):
    """Tasks on the Ray cluster at RAY_ADDRESS, or on this machine.

    All machines must find the folder of the store under the same path, and use the same version of Dragoman.
    """

    def __init__(self) -> None:
        self._ray = extra_package("ray", "scale", "a cluster")
        self._started_here = not self._ray.is_initialized()
        if self._started_here:
            self._ray.init(include_dashboard=False, logging_level=logging.WARNING, log_to_driver=False)
        self._count = max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def __exit__(self, *_: object) -> None:
        if self._started_here:
            self._ray.shutdown()

    def map(self, function: Callable[[_Task], _Result], tasks: Iterator[_Task]) -> Iterator[_Result]:
        remote = self._ray.remote(num_cpus=1)(function)
        pending: deque[Any] = deque()
        for task in tasks:
            pending.append(remote.remote(task))
            if len(pending) > self._count + 1:
                yield self._result(pending.popleft())
        while pending:
            yield self._result(pending.popleft())

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, (DragomanError, OSError)) else error from None
        except self._ray.exceptions.RayError as error:
            raise DragomanError(f"a worker of the cluster failed: {error}. Run the same command again.") from None
