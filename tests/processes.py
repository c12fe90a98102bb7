"""Functions that run in several processes which communicate, as those that `torchrun` starts."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

needs_gloo = pytest.mark.skipif(
    not __import__("torch").distributed.is_available(), reason="this PyTorch has no torch.distributed"
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def fork_server() -> Any:
    """Return a multiprocessing context whose processes begin with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "dragoman.training.trainer",
            "tensorboard.summary.writer.record_writer",
            "small_run",
            "pytest",
            "torch.distributed.fsdp",
            "torch._dynamo",
        ]
    )
    return context


def start_processes(size: int, work: Callable[..., None], *args: Any, **environment: str) -> list[BaseProcess]:
    """Start `work(*args)` in `size` processes with the environment of `torchrun`, and others in `environment`."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size), **environment}
    processes = []
    for rank in range(size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
        process = fork_server().Process(target=_run, args=(work, args, {**own, **shared}))
        process.start()
        processes.append(process)
    return processes


def _run(work: Callable[..., None], args: tuple[Any, ...], environment: dict[str, str]) -> None:
    import torch

    os.environ.update(environment)
    torch.set_num_threads(1)
    work(*args)


def wait_for_file(path: Path, seconds: float = 300) -> None:
    """Wait until another process has written a file."""
    end = time.monotonic() + seconds
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < end, f"no {path} within {seconds:g} s"
        time.sleep(0.02)


def run_processes(size: int, work: Callable[..., None], *args: Any, seconds: float = 300, **environment: str) -> None:
    """Run `work(*args)` in `size` processes; fail if one of them fails or takes too long."""
    processes = start_processes(size, work, *args, **environment)
    for process in processes:
        process.join(seconds)
    for process in processes:
        process.kill()
    assert [process.exitcode for process in processes] == [0] * size
