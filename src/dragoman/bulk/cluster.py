"""A bulk translation over a Ray cluster: a translator in each worker, and all that is written is written here.

A worker is handed lines and gives bytes back; what it had in hand when it died goes to another.  So a chunk may be
translated twice, but it is kept once, and its bytes are those of a run without Ray.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dragoman.bulk.work import Chunk, Done, Form, Job, Translated, Worker
from dragoman.errors import DragomanError, UsageError
from dragoman.extras import extra_package

__all__ = ["translated_on_ray"]

_DEATHS = 3
_LOADING = "loading the model"


class RayWorker:
    """The worker's side."""

    def load(self, job: Job, sha256: Mapping[str, str]) -> str:
        """The worker's path.  Not in the constructor: what is wrong with the model would come back as a worker that
        died.
        """
        self.worker = Worker(job, sha256)
        return self.worker.path

    def translate(self, texts: Sequence[str], form: Form) -> Done:
        return self.worker.translate(texts, form)


class WorkerPool:
    """The workers, and what each has in hand: a chunk, or None while it loads the model."""

    def __init__(
        self, ray: Any, job: Job, sha256: Mapping[str, str], size: int, agree: Callable[[str], object]
    ) -> None:
        self.ray, self.job, self.sha256, self.agree = ray, job, sha256, agree
        self.in_hand: dict[Any, tuple[Any, Chunk | None]] = {}  # by the reference of what will come back
        self.deaths: Counter[str] = Counter()
        self.again: list[Chunk] = []
        for _ in range(size):
            self._spawn()

    def _spawn(self) -> None:
        threads = self.job.load.get("threads") or 1
        gpus = 1 if _on_gpu(self.job) else 0
        hand = self.ray.remote(num_cpus=threads, num_gpus=gpus)(RayWorker).remote()
        self.in_hand[hand.load.remote(self.job, self.sha256)] = hand, None

    def work(self, chunks: Iterator[Chunk]) -> Translated:
        """Each chunk once, in the order in which they are done."""
        while self.in_hand:
            (reference,), _ = self.ray.wait(list(self.in_hand))
            hand, chunk = self.in_hand.pop(reference)
            try:
                done = self.ray.get(reference)
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, DragomanError) else error from None
            except self.ray.exceptions.RayError as error:  # the worker died, or the machine that had its answer
                self._died(chunk, error)
                continue
            if chunk is None:
                self.agree(done)  # before it has work, and where no work is left
                del self.deaths[_LOADING]  # it can be loaded; on a large cluster machines come and go
            following = self.again.pop() if self.again else next(chunks, None)
            if following is not None:
                self.in_hand[hand.translate.remote(following.texts, following.form)] = hand, following
            if chunk is not None:
                yield chunk, done
            if following is None and all(other is None for _, other in self.in_hand.values()):
                return  # those that still load have come too late

    def _died(self, chunk: Chunk | None, error: Exception) -> None:
        name = _LOADING if chunk is None else f"{chunk.shard}, chunk {chunk.number}"
        self.deaths[name] += 1
        if self.deaths[name] == _DEATHS:
            raise DragomanError(
                f"{_DEATHS} workers of the cluster died over the same work ({name}): {error}\n"
                "If memory was short, give the workers more of it. What is done is kept: run the same command again."
            )
        if chunk is not None:
            self.again.append(chunk)
        self._spawn()


def _on_gpu(job: Job) -> bool:
    return str(job.load.get("device", "cpu")).startswith("cuda")


def translated_on_ray(
    job: Job, sha256: Mapping[str, str], chunks: Iterator[Chunk], count: int, agree: Callable[[str], object]
) -> Translated:
    """The chunks, in the order in which they are done; `count` is their number.

    agree: is given the path (see `Done`) of each worker that has loaded the model, of one where there is no chunk; it
    raises where that cannot be.

    The cluster is the one that RAY_ADDRESS names, or else this machine.  A worker takes `job.load["threads"]` cores (1
    where not given), and a GPU where the device is one; it must find the model under the same path.  Raises UsageError
    where the cluster has no room for one worker, DragomanError where workers die again and again.
    """
    ray = extra_package("ray", "scale", "a cluster")
    device = "cuda" if _on_gpu(job) else job.load.get("device", "cpu")  # Ray shows each worker one GPU, its first
    job = replace(job, load={**job.load, "device": device})
    mine = not ray.is_initialized()
    if mine:
        ray.init(include_dashboard=False, logging_level=logging.WARNING, log_to_driver=False)
    try:
        resources = ray.cluster_resources()
        threads = job.load.get("threads") or 1
        kind, each = ("GPU", 1) if _on_gpu(job) else ("CPU", threads)
        room = int(resources.get(kind, 0)) // each
        if not room:
            raise UsageError(
                f"the Ray cluster has {resources.get(kind, 0):g} {kind} in all, and a worker takes {each}: "
                "lower --threads, choose another --device, or add machines"
            )
        yield from WorkerPool(ray, job, sha256, min(room, max(1, count)), agree).work(chunks)
    finally:
        if mine:
            ray.shutdown()
