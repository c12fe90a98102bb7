"""Training with weights that are split over processes (train.parallel.kind = "fsdp")."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dragoman.errors import DragomanError, UsageError
from dragoman.io.run_log import read_log
from dragoman.models.model_folder import list_checkpoints, read_meta, verify
from dragoman.pipelines.translation import Translator
from dragoman.training.trainer import train
from processes import assert_equal_runs, last_weights, needs_gloo, run_processes, wait_for_file
from small_run import small_config, train_in_child, write_corpus

pytestmark = needs_gloo
SHARDED = "train.parallel.kind=fsdp"
SAME_STEPS = (
    "train.budget=20 steps", "train.validate_every=10 steps", "model.dropout=0.2", "train.clip_norm=1.0",
    "train.ema=0.9", "train.batch_tokens=60", "model.bias=false",
)  # fmt: skip
"""Without biases: Adam amplifies rounding errors of the bias of the keys, whose gradient is 0."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data", train=130)


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (2, ()),
        # The last step of an epoch has fewer batches than processes, and processes with one batch and with two.
        (3, ("train.accumulate=2", "train.batch_tokens=150", "train.optimizer.kind=sgd", "train.optimizer.momentum=0.9",
             "train.gradient_checkpointing=true", "model.tie=none")),
    ],
)  # fmt: skip
def test_split_weights_are_those_of_replicas(size: int, settings: tuple[str, ...], data: Path, tmp_path: Path) -> None:
    own = (*SAME_STEPS, *settings)
    run_processes(size, train_in_child, data, own, tmp_path / "replicated")
    run_processes(size, train_in_child, data, (*own, SHARDED), tmp_path / "fsdp")
    assert_equal_runs(tmp_path / "fsdp", tmp_path / "replicated")
    texts = [
        [t.text for t in Translator.load(tmp_path / kind, quantize="none").translate(["one two", "nine"])]
        for kind in ("fsdp", "replicated")
    ]
    assert texts[0] == texts[1]


def test_every_process_writes_its_part_of_a_checkpoint(data: Path, tmp_path: Path) -> None:
    run_processes(2, train_in_child, data, (*SAME_STEPS, SHARDED), tmp_path / "run")
    run_processes(2, train_in_child, data, SAME_STEPS, tmp_path / "replicated")
    folder, whole = (list_checkpoints(tmp_path / name)[-1] for name in ("run", "replicated"))
    names = {path.name for path in whole.iterdir()} - {"training.safetensors"}
    parts = [f"training-{i}-of-2.safetensors" for i in (1, 2)]
    assert {path.name for path in folder.iterdir()} == names | set(parts)
    assert read_meta(folder)["sha256"].keys() == names - {"meta.json"} | set(parts)
    expected = load_file(whole / "training.safetensors")
    found = [load_file(folder / part) for part in parts]
    assert found[0].keys() == found[1].keys() == expected.keys()
    for name, value in expected.items():
        joined = torch.cat([part[name] for part in found]) if value.dim() else found[0][name]
        torch.testing.assert_close(joined, value, rtol=1e-5, atol=1e-6, msg=name)
        assert not value.dim() or max(len(part[name]) for part in found) < len(value)


CONSTANT = ("train.schedule.kind=constant", "train.schedule.rate=0.01", "model.norm.kind=batch")


def continued(data: Path, run: Path, kinds: tuple[str, str], sizes: tuple[int, int]) -> Path:
    for kind, size, steps in zip(kinds, sizes, (10, 14), strict=True):
        budget = (f"train.budget={steps} steps", f"train.parallel.kind={kind}")
        run_processes(size, train_in_child, data, (*SAME_STEPS, *CONSTANT, *budget), run)
    return run


def test_resumed_with_another_number_of_processes_or_kind(data: Path, tmp_path: Path) -> None:
    """Checkpoints are read by any number of processes, of either kind."""
    expected = continued(data, tmp_path / "expected", ("replicated", "replicated"), (2, 3))
    for kinds in (("fsdp", "fsdp"), ("fsdp", "replicated"), ("replicated", "fsdp")):
        run = continued(data, tmp_path / "-".join(kinds), kinds, (2, 3))
        assert int(list_checkpoints(run)[-1].name) == 14
        assert_equal_runs(run, expected)


def test_resumed_by_one_process(data: Path, tmp_path: Path) -> None:
    expected = continued(data, tmp_path / "expected", ("replicated", "replicated"), (2, 1))
    assert_equal_runs(continued(data, tmp_path / "run", ("fsdp", "replicated"), (2, 1)), expected)


def test_a_damaged_part_is_noticed(data: Path, tmp_path: Path) -> None:
    """The previous checkpoint is used, and the run ends with the same bytes."""
    own = (*SAME_STEPS, SHARDED)
    run_processes(2, train_in_child, data, own, tmp_path / "run")
    end = last_weights(tmp_path / "run")
    last = list_checkpoints(tmp_path / "run")[-1]
    part = last / "training-2-of-2.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    run_processes(2, train_in_child, data, own, tmp_path / "run")
    assert [row["step"] for row in read_log(tmp_path / "run") if "valid_loss" in row] == [10, 20]
    for name, value in last_weights(tmp_path / "run").items():
        assert torch.equal(value, end[name]), name


# ---------------------------------------------------------------------------------------------------------- failures


def failing(data: Path, run: Path, overrides: tuple[str, ...], prepare: Callable[[int], None]) -> None:
    """Train in this process, which `prepare` has changed; write the message of its error."""
    rank = int(os.environ["RANK"])
    prepare(rank)
    try:
        train(small_config(data, *SAME_STEPS, *overrides), run)
    except DragomanError as error:
        run.with_name(f"{run.name}.{rank}").write_text(f"{error.reported} {error}")
        if rank == 0:  # it has the store, which torchrun would have
            wait_for_file(run.with_name(f"{run.name}.1"))


def messages(run: Path, size: int = 2) -> list[str]:
    """The messages of all processes, of which exactly one is printed; that one first."""
    found = [run.with_name(f"{run.name}.{rank}").read_text() for rank in range(size)]
    assert sorted(text.split()[0] for text in found) == ["False"] + ["True"] * (size - 1), found
    return sorted(found)


def full_disk(bad_rank: int, file: str, rank: int) -> None:
    """After the first checkpoint, the disk of one process is full while it writes `file`."""
    if rank != bad_rank:
        return
    flush = os.fsync

    def fail(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == file and "00000003" not in path.parent.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    os.fsync = fail


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize(
    ("bad_rank", "kind", "file"),
    [
        (0, "replicated", "model.safetensors"), (0, "fsdp", "model.safetensors"),
        (0, "fsdp", "training-1-of-2.safetensors"), (1, "fsdp", "training-2-of-2.safetensors"),
    ],
)  # fmt: skip
def test_a_full_disk_ends_all_processes_with_one_message(
    bad_rank: int, kind: str, file: str, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    own = (
        f"train.parallel.kind={kind}",
        "train.save_every=3 steps",
        "train.log_every=1",
        "train.validate_every=100 steps",
    )
    prepare = partial(full_disk, bad_rank, file)
    run_processes(2, failing, data, run, own, prepare)
    said, _ = messages(run)
    assert "could not be written: the disk is full." in said and "A lower train.keep needs less space" in said
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["00000003"], "nothing unfinished is left"
    verify(list_checkpoints(run)[0])
    run_processes(2, train_in_child, data, (*SAME_STEPS, *own), run)
    assert int(list_checkpoints(run)[-1].name) == 20


VERSIONS = {"Dragoman": ("dragoman.training.run.__version__", "0.0.9"), "PyTorch": ("torch.__version__", "2.11.5")}


def other_version(name: str, rank: int) -> None:
    if rank == 1:
        pytest.MonkeyPatch().setattr(*VERSIONS[name])


@pytest.mark.parametrize("name", VERSIONS)
def test_different_versions_are_refused(name: str, data: Path, tmp_path: Path) -> None:
    run_processes(2, failing, data, tmp_path / "run", (SHARDED,), partial(other_version, name))
    for text in messages(tmp_path / "run"):
        assert f"the processes differ: {name}: " in text and "use the same installation" in text
    assert not list_checkpoints(tmp_path / "run")


def elsewhere(rank: int) -> None:
    """Process 1 sees another file system."""
    if rank == 1:
        real = Path.is_dir
        pytest.MonkeyPatch().setattr(Path, "is_dir", lambda self: real(self) and self.name != "run")


def test_a_run_folder_that_is_not_shared_is_refused(data: Path, tmp_path: Path) -> None:
    run_processes(2, failing, data, tmp_path / "run", (SHARDED,), elsewhere)
    said, _ = messages(tmp_path / "run")
    assert "choose an --out on a file system that all computers share" in said


def test_one_process_is_refused_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"there is one process; accepted: two or more.*train.parallel.kind=replicated"
    ):
        train(small_config(data, SHARDED), tmp_path / "run")
    assert not (tmp_path / "run").exists() and not (tmp_path / "prepared").exists()
