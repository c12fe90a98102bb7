"""Communication between the processes of a training."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from dragoman.errors import DragomanError, TrainingError, UsageError
from dragoman.training.distributed import DistributedContext, GradientSum, ProcessGroup, open_context
from processes import run_processes, start_processes, wait_for_file

SIZE = 3


@contextmanager
def connected(timeout: float = 60) -> Iterator[ProcessGroup]:
    with open_context("cpu") as context:
        assert isinstance(context, ProcessGroup)
        context.connect(timeout)
        yield context


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def rows(rank: int) -> torch.Tensor:
    return torch.randn(4 + rank, 5, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def assert_sums(model: nn.Module) -> None:
    """Compare the gradients of a process with those of the rows of all processes in one process."""
    alone = network()
    torch.cat([alone(rows(rank)) for rank in range(SIZE)]).square().sum().backward()
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-12, atol=1e-12)


def sum_gradients() -> None:
    """Over processes and accumulated batches."""
    with connected() as context:
        model = network()
        context.register(model)
        for _ in range(2):
            model.zero_grad()
            model(rows(context.rank)[:2]).square().sum().backward()  # local: accumulated
            with context.summing_gradients():
                model(rows(context.rank)[2:]).square().sum().backward()
            assert_sums(model)


def leave_unused_without_gradient() -> None:
    """A parameter that no process uses has no gradient, not one of zeros."""
    with connected() as context:
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        context.register(model)
        with context.summing_gradients():
            model[0](torch.ones(1, 2)).sum().backward()
        assert model[0].weight.grad is not None and model[0].weight.grad.eq(SIZE).all()
        assert model[1].weight.grad is None


def communicate() -> None:
    with connected() as context:
        rank = context.rank
        assert context.size == SIZE and context.is_main == (rank == 0)
        assert context.sum(torch.tensor([1.0, rank])).tolist() == [3.0, 3.0]
        assert context.on_main(lambda: {"rank": rank}) == {"rank": 0}
        assert context.gather(str(rank)) == ["0", "1", "2"]
        tensors = [torch.full((2,), float(rank)), torch.full((1,), rank)]
        context.copy_from_main(tensors)
        assert tensors[0].eq(0).all() and tensors[1].eq(0).all()
        context.check_equal({"version": "1"})
        with pytest.raises(TrainingError, match=r"version: 0 in process 0 on .*, 1 in process 1 on .*; use the same"):
            context.check_equal({"version": str(rank), "corpus": "a"})


def take_turns(file: Path) -> None:
    with open_context("cpu") as context:
        for _ in range(2):
            with context.in_turn():
                time.sleep(0.05)
                with file.open("a") as out:
                    out.write(f"{context.rank} ")
        context.connect(60)


def test_the_main_process_comes_first(tmp_path: Path) -> None:
    run_processes(SIZE, take_turns, tmp_path / "order")
    order = (tmp_path / "order").read_text().split()
    assert len(order) == 2 * SIZE
    assert order[0] == "0" and order.index("0", 1) <= SIZE + 1


def lose_one(folder: Path, number: int) -> None:
    rank = os.environ["RANK"]
    try:
        with connected(timeout=8) as context:
            for step in range(1000):
                if step == 5 and rank == "1":
                    os.kill(os.getpid(), number)
                context.sum(torch.ones(3))
    except TrainingError as error:
        (folder / rank).write_text(f"{error.reported} {error}")
        wait_for_file(folder / "2")  # process 0 has the store, which torchrun would have
        os._exit(7)


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_the_others_end_if_a_process_is_lost(name: str, tmp_path: Path) -> None:
    processes = start_processes(SIZE, lose_one, tmp_path, getattr(signal, name))
    for rank in (0, 2):
        processes[rank].join(300)
        assert processes[rank].exitcode == 7
    processes[1].kill()
    messages = [(tmp_path / str(rank)).read_text() for rank in (0, 2)]
    assert all("another process has ended, or did not answer for 8 s" in message for message in messages)
    assert sorted(message.split()[0] for message in messages) == ["False", "True"], "one process prints the message"


def test_a_single_process_needs_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    context = open_context("cpu")
    assert type(context) is DistributedContext and context.is_main and context.size == 1
    assert context.gather(4) == [4] and context.on_main(lambda: 4) == 4
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UsageError, match="WORLD_SIZE='two' in the environment; accepted: a whole number"):
        open_context("cpu")


def test_buckets_have_a_fixed_content() -> None:
    model = network()
    assert [len(bucket.parameters) for bucket in GradientSum(model.parameters(), 8 * 20)._buckets] == [3, 1, 2]


def sum_every_bucket() -> None:
    with connected() as context:
        model = network()
        summing = GradientSum(model.parameters(), bucket_bytes=16)
        assert len(summing._buckets) == 6
        with summing:
            model(rows(context.rank)).square().sum().backward()
        assert_sums(model)


def train_twice() -> None:
    for number in (1, 2):
        with connected() as context:
            assert context.on_main(lambda number=number: f"training {number}") == f"training {number}"


WORKS = [sum_gradients, leave_unused_without_gradient, communicate, sum_every_bucket, train_twice]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__)
def test_gradients_and_communication(work: Callable[[], None]) -> None:
    run_processes(SIZE, work)


def prepare_slowly() -> None:
    with open_context("cpu") as context:
        with context.in_turn():
            time.sleep(0 if context.is_main else 8)
        context.connect(5)


def test_the_timeout_does_not_include_the_preparation_of_other_processes() -> None:
    run_processes(2, prepare_slowly)


def train_twice_with_a_late_main_process(folder: Path) -> None:
    with connected() as context:
        is_main = context.is_main
    if is_main:
        wait_for_file(folder / "begun")
        time.sleep(0.3)  # the other process has connected for its second training
    del context
    gc.collect()
    if not is_main:
        (folder / "begun").write_text("second training")
    with connected() as context:
        assert context.on_main(lambda: 7) == 7


def test_the_second_training_does_not_wait_for_the_store_of_the_first_to_close(tmp_path: Path) -> None:
    run_processes(2, train_twice_with_a_late_main_process, tmp_path, seconds=60)


def fail_on_main(folder: Path, during: str) -> None:
    rank = os.environ["RANK"]
    try:
        with open_context("cpu") as context:
            with context.in_turn():
                if during == "turn" and context.is_main:
                    raise UsageError("wrong file")
            context.connect(60)
            context.on_main(fail)
    except DragomanError as error:
        (folder / rank).write_text(f"{error.reported} {error}")
        for other in range(1, SIZE if rank == "0" else 0):  # process 0 has the store, which torchrun would have
            wait_for_file(folder / str(other))


def fail() -> None:
    raise UsageError("damaged")


@pytest.mark.parametrize("during", ["turn", "result"])
def test_the_others_learn_that_the_main_process_has_failed(during: str, tmp_path: Path) -> None:
    run_processes(SIZE, fail_on_main, tmp_path, during)
    messages = [(tmp_path / str(rank)).read_text() for rank in range(SIZE)]
    assert messages[0] == f"False {'wrong file' if during == 'turn' else 'damaged'}"
    assert all(message.startswith("True another process has failed") for message in messages[1:])


def two_computers(file: Path) -> None:
    rank = int(os.environ["RANK"])
    os.environ.update(LOCAL_RANK=str(rank % 2), LOCAL_WORLD_SIZE="2", GROUP_RANK=str(rank // 2))
    with open_context("cpu") as context:
        with context.in_turn():
            with file.open("a") as out:
                out.write(f"{rank} begins\n")
            time.sleep(0.2)
            with file.open("a") as out:
                out.write(f"{rank} ends\n")
        context.connect(60)


def test_one_process_of_every_computer_prepares_before_the_others(tmp_path: Path) -> None:
    run_processes(4, two_computers, tmp_path / "order")
    order = (tmp_path / "order").read_text().splitlines()
    assert len(order) == 8
    for earlier, later in ((0, 1), (0, 2), (0, 3), (2, 3)):
        assert order.index(f"{earlier} ends") < order.index(f"{later} begins"), order


def test_the_environment_of_torchrun_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"WORLD_SIZE=2 .* RANK, MASTER_ADDR, MASTER_PORT not set; use torchrun"):
        open_context("cpu")
    for name, value in (("RANK", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="but RANK=2; use torchrun"):
        open_context("cpu")
