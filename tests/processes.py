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
import torch
from safetensors.torch import load_file

from dragoman.io.run_log import read_log
from dragoman.models.model_folder import list_checkpoints, verify

needs_gloo = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")


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


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    """The tensors of the last checkpoint, which is whole."""
    folder = list_checkpoints(run)[-1]
    verify(folder)
    return load_file(folder / "model.safetensors")


def assert_equal_runs(run: Path, expected: Path) -> None:
    """Two runs ended with the same weights and had the same losses, up to the order of additions."""
    found, whole = last_weights(run), last_weights(expected)
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6, msg=f"{run.name}: {name}")
    losses = [[(row["step"], row["loss"]) for row in read_log(folder) if "loss" in row] for folder in (run, expected)]
    for (step, loss), (expected_step, expected_loss) in zip(*losses, strict=True):
        assert step == expected_step and loss == pytest.approx(expected_loss, rel=1e-5), step
