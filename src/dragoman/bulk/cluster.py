"""Bulk translation on a Ray cluster: each worker has a translator; only the driver reads input and writes output.

The chunk of a worker that dies is passed to another one.  A chunk may thus be translated twice, but it is stored once,
with the same bytes as without Ray.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dragoman.bulk.work import Chunk, ChunkResult, Job, Results, Worker
from dragoman.errors import DragomanError, UsageError
from dragoman.extras import extra_package
from dragoman.pipelines.form import Form

_MAX_DEATHS = 3
_LOADING = "loading the model"


class RayWorker:
    """Remote actor of one worker."""

    def load(self, job: Job, sha256: Mapping[str, str]) -> str:
        """Load the model and return the backend.  Not in the constructor: its errors look like the actor died."""
        self.worker = Worker(job, sha256)
        return self.worker.backend

    def translate(self, texts: Sequence[str], form: Form) -> ChunkResult:
        return self.worker.translate(texts, form)


class WorkerPool:
    """The workers and their pending calls: reference -> (worker, chunk; None while it loads the model)."""

    def __init__(
        self, ray: Any, job: Job, sha256: Mapping[str, str], size: int, check_backend: Callable[[str], object]
    ) -> None:
        self.ray, self.job, self.sha256, self.check_backend = ray, job, sha256, check_backend
        self.pending: dict[Any, tuple[Any, Chunk | None]] = {}
        self.deaths: Counter[str] = Counter()
        self.retries: list[Chunk] = []
        for _ in range(size):
            self._spawn()

    def _spawn(self) -> None:
        threads, gpus = self.job.load.get("threads") or 1, int(_uses_gpu(self.job))
        worker = self.ray.remote(num_cpus=threads, num_gpus=gpus)(RayWorker).remote()
        self.pending[worker.load.remote(self.job, self.sha256)] = worker, None

    def work(self, chunks: Iterator[Chunk]) -> Results:
        """Yield each chunk with its result, in order of completion."""
        while self.pending:
            (reference,), _ = self.ray.wait(list(self.pending))
            worker, chunk = self.pending.pop(reference)
            try:
                result = self.ray.get(reference)
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, DragomanError) else error from None
            except self.ray.exceptions.RayError as error:  # the worker died, or the machine that held its result
                self._handle_death(chunk, error)
                continue
            if chunk is None:
                self.check_backend(result)  # before it gets work, and even if no work is left
                del self.deaths[_LOADING]  # loading works; workers may die because machines leave the cluster
            following = self.retries.pop() if self.retries else next(chunks, None)
            if following is not None:
                self.pending[worker.translate.remote(following.texts, following.form)] = worker, following
            if chunk is not None:
                yield chunk, result
            if following is None and all(other is None for _, other in self.pending.values()):
                return  # the other workers are still loading and not needed

    def _handle_death(self, chunk: Chunk | None, error: Exception) -> None:
        name = _LOADING if chunk is None else f"{chunk.shard}, chunk {chunk.number}"
        self.deaths[name] += 1
        if self.deaths[name] == _MAX_DEATHS:
            raise DragomanError(
                f"{_MAX_DEATHS} workers of the cluster died on the same work ({name}): {error}\n"
                "If they ran out of memory, increase it. Finished chunks are kept; run the same command to resume."
            )
        if chunk is not None:
            self.retries.append(chunk)
        self._spawn()


def _uses_gpu(job: Job) -> bool:
    return str(job.load.get("device", "cpu")).startswith("cuda")


def translate_on_ray(
    job: Job, sha256: Mapping[str, str], chunks: Iterator[Chunk], count: int, check_backend: Callable[[str], object]
) -> Results:
    """Translate `count` chunks on the Ray cluster at RAY_ADDRESS, or on this machine; yield in order of completion.

    A worker uses `job.load["threads"]` cores (default 1) and one GPU if the device is a GPU; it must find the model
    under the same path.  check_backend: called with the backend of each worker that has loaded the model; raises to
    stop the job.

    Raises UsageError if the cluster is too small for one worker, DragomanError if workers die repeatedly.
    """
    ray = extra_package("ray", "scale", "a cluster")
    device = "cuda" if _uses_gpu(job) else job.load.get("device", "cpu")  # each worker sees one GPU, as the first
    job = replace(job, load={**job.load, "device": device})
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(include_dashboard=False, logging_level=logging.WARNING, log_to_driver=False)
    try:
        resources = ray.cluster_resources()
        kind, needed = ("GPU", 1) if _uses_gpu(job) else ("CPU", job.load.get("threads") or 1)
        size = int(resources.get(kind, 0)) // needed
        if not size:
            raise UsageError(
                f"the Ray cluster has {resources.get(kind, 0):g} {kind} in total, and one worker needs {needed}: "
                "lower --threads, choose another --device, or add machines"
            )
        yield from WorkerPool(ray, job, sha256, min(size, max(1, count)), check_backend).work(chunks)
    finally:
        if started_here:
            ray.shutdown()
