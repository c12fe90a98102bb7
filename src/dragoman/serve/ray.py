"""`dragoman serve --ray`: replicas of the server on a Ray cluster, behind the HTTP proxies of Ray Serve."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp

from dragoman.config.server import ServerConfig
from dragoman.errors import DragomanError, UsageError, clip
from dragoman.extras import extra_package
from dragoman.serve.listen import listen
from dragoman.serve.reloader import Reloader
from dragoman.serve.start import check, create_application

__all__ = ["serve_on_ray"]

_FEATURE = "serving on Ray"
_NAME = "dragoman"
_MOST_REQUESTS = 100_000
"""Requests that Ray Serve passes to a replica at the same time; the replica itself refuses what is too much."""


def serve_on_ray(config: ServerConfig, replicas: int | None, log: Callable[[str], None]) -> None:
    """Serve by replicas on the Ray cluster at RAY_ADDRESS, or on this machine, until the process is stopped.

    replicas: default: one per machine.  Models and database must have the same paths on all machines.  Raises
    UsageError if Ray is missing, the cluster is too small, or an option has no meaning for Ray; DragomanError if the
    replicas cannot be started.
    """
    _check_options(config)
    check(config)
    listen(config.host, config.port).close()  # the proxies of Ray Serve report less clearly that it is not possible
    ray = extra_package("ray", "scale", _FEATURE)
    serve = extra_package("ray.serve", "scale", _FEATURE)
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    try:
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cores = [int(node.get("CPU", 0)) for node in alive]
        number = replicas or sum(map(bool, cores)) or 1
        threads = _threads(cores, number)
        on_gpu = _on_gpu(config.device, [int(node.get("GPU", 0)) for node in alive], number)
        if serve.status().proxies:
            raise UsageError("Ray Serve already runs on this cluster; stop it ('serve shutdown'), or use another one")
        if number > 1 and not config.database:
            raise UsageError(
                "several replicas need a database of glossaries, documents and keys that they share; specify "
                "--database FILE (create it with 'dragoman keys add FILE'), or --replicas 1"
            )
        try:
            _run(serve, config, number, threads, on_gpu, log)
        finally:
            if not started_here:
                serve.shutdown()
    finally:
        if started_here:
            ray.shutdown()


def _check_options(config: ServerConfig) -> None:
    """Raise UsageError for options that have no meaning for Ray Serve."""
    problems = []
    if config.port == 0:
        problems.append("port 0: the proxies of all machines need the same port; specify one, such as --port 8000")
    if config.device not in ("cpu", "cuda", "auto"):
        problems.append(f"device {config.device!r}: Ray selects the GPU of each replica; accepted: auto, cpu, cuda")
    if config.log_requests:
        problems.append("log_requests: the replicas have no standard output; Ray Serve writes an access log of its own")
    if problems:
        raise UsageError("\n".join(["Options that --ray does not accept:", *problems]))


def _threads(cores: Sequence[int], replicas: int) -> int:
    """Return the largest number of threads with which all replicas fit.  cores: of each machine.  Raises UsageError."""
    for threads in range(max(cores, default=0), 0, -1):
        if sum(own // threads for own in cores) >= replicas:
            return threads
    raise UsageError(
        f"the Ray cluster has {sum(cores)} CPU in total, and each replica needs 1: lower --replicas {replicas}, or add "
        "machines"
    )


def _on_gpu(device: str, gpus: Sequence[int], replicas: int) -> bool:
    """Return whether each replica gets a GPU.  gpus: of each machine.  Raises UsageError if there are too few."""
    if device == "cuda" and sum(gpus) < replicas:
        raise UsageError(
            f"the Ray cluster has {sum(gpus)} GPUs, and each replica needs 1: lower --replicas {replicas}, add "
            "machines with GPUs, or use --device cpu"
        )
    return device != "cpu" and sum(gpus) >= replicas


def _run(
    serve: Any, config: ServerConfig, replicas: int, threads: int, on_gpu: bool, log: Callable[[str], None]
) -> None:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        try:
            serve.start("EveryNode", {"host": config.host, "port": config.port})
            serve.run(_application(serve, config, replicas, threads, on_gpu), name=_NAME, route_prefix="/")
        except RuntimeError as error:
            raise DragomanError(f"Ray Serve cannot start: {clip(str(error), 2000)}") from None
        host = f"[{config.host}]" if ":" in config.host else config.host
        log(f"http://{host}:{config.port}   replicas: {replicas}, threads of each: {threads} (press Ctrl-C to stop)")
        stopped.wait()
    finally:
        serve.delete(_NAME)  # returns when the requests in progress are finished
        for number, handler in before.items():
            signal.signal(number, handler)


def _application(serve: Any, config: ServerConfig, replicas: int, threads: int, on_gpu: bool) -> Any:
    """Return the deployment.  Ray sets OMP_NUM_THREADS of a replica to its CPUs, which limits its threads."""

    def create() -> ASGIApp:  # called by each replica
        app, reloader = create_application(config, logging.getLogger(_NAME).warning)
        if reloader is not None:
            _load_first(app, reloader)
        return app

    deployment = serve.deployment(
        name=_NAME,
        num_replicas=replicas,
        max_ongoing_requests=_MOST_REQUESTS,
        graceful_shutdown_timeout_s=config.drain,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": threads, "num_gpus": int(on_gpu)},
    )
    return deployment(serve.ingress(create)()).bind()


def _load_first(app: Starlette, reloader: Reloader) -> None:
    """Load the models before the replica is ready."""
    serving = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[Any]:
        await reloader.start()
        async with serving(app) as state:
            yield state

    app.router.lifespan_context = lifespan
