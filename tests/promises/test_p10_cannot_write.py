"""P10: the message of a failed write names the path, the reason and what to do; no work is lost."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from small_run import COMMAND, Cli, trained, write_lines

ADVICE = "the file system is read-only. "


def mounted(folder: Path, *options: str) -> bool:
    """Mount a small file system in memory at `folder`; return whether this user may do so."""
    folder.mkdir()
    mount = shutil.which("mount")
    return (
        mount is not None
        and not subprocess.run(
            [mount, "-t", "tmpfs", *options, "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def read_only(run: Path, tmp_path: Path) -> Iterator[Path]:
    """A read-only file system with a run and a small text."""
    folder = tmp_path / "read-only"
    if not mounted(folder):
        pytest.skip("only root can mount a file system")
    try:
        shutil.copytree(run, folder / "run")
        write_lines(folder / "text", ["one two"])
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for 64 kB."""
    folder = tmp_path / "disk"
    if not mounted(folder, "-o", "size=64k"):
        pytest.skip("only root can mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_translations_into_a_read_only_folder(cli: Cli, run: Path, read_only: Path) -> None:
    text = read_only / "text"
    code, out, err = cli("translate", run, "--input", text, "--output", read_only / "out")
    assert (code, out) == (2, b"")
    assert f"{read_only / 'out'} could not be written: {ADVICE}Choose a folder that can be written." in err
    code, out, err = cli("translate", run, "--input", text, "--input", run / "config.toml", "--output", read_only / "o")
    assert (code, out) == (1, b"")
    assert f"{read_only / 'o'} could not be written: {ADVICE}" in err and "can be written." in err


def test_a_read_only_run(cli: Cli, read_only: Path, tmp_path: Path) -> None:
    """The run can be used; the error of a command that writes into it names the path."""
    run = read_only / "run"
    code, out, _ = cli("translate", run, stdin=b"one two\n")
    assert code == 0 and out.count(b"\n") == 1
    code, _, err = cli("average", run, "--last", "2")
    assert code == 1 and f"{run} could not be written: {ADVICE}" in err
    data = ["--source", read_only / "text", "--target", write_lines(tmp_path / "target", ["deux un"])]
    code, _, err = cli("shortlist", run, *data)
    assert code == 1 and "shortlist.bin could not be written: " in err and ADVICE in err


def test_pages_and_exports_into_a_read_only_folder(cli: Cli, run: Path, read_only: Path) -> None:
    page = read_only / "page.html"
    code, _, err = cli("explain", run, "one two", "--out", page)
    assert code == 1 and f"{page} could not be written: {ADVICE}" in err
    if importlib.util.find_spec("ctranslate2") is None:
        pytest.skip("ctranslate2 is not installed")
    code, _, err = cli("export", run, read_only / "exported")
    assert code == 1 and f"{read_only / 'exported'} could not be written: {ADVICE}Choose a folder" in err


def test_translations_onto_a_full_disk(cli: Cli, run: Path, small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(60_000))
    text = write_lines(tmp_path / "text", ["one two three four five six"] * 1500)
    out = small_disk / "out"
    out.write_bytes(b"an earlier result\n")
    code, _, err = cli("translate", run, "--input", text, "--output", out, "--beam", "1")
    assert code == 1 and f"{out} could not be written: the disk is full. Free some space, or choose" in err
    assert out.read_bytes() == b"an earlier result\n" and "partial output kept in" in err
    bulk = ["translate", run, "--input", text, "--input", run / "config.toml", "--beam", "1"]
    code, _, err = cli(*bulk, "--output", small_disk / "bulk")
    assert code == 1 and f"{small_disk / 'bulk'}" in err.split("could not be written: the disk is full. ")[0]
    assert "Finished chunks are kept; run the same command to resume. Free some space" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_standard_output_that_is_full_is_named(run: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "translate", str(run), "--beam", "1"], input=b"one\n", stdout=full, stderr=subprocess.PIPE,
            check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    assert done.returncode == 1
    assert b"dragoman: standard output could not be written: the disk is full. Free some space" in done.stderr
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_device_that_is_full_is_named(cli: Cli, run: Path) -> None:
    code, _, err = cli("translate", run, "--output", "/dev/full", "--beam", "1", stdin=b"one\n")
    assert code == 1 and "/dev/full could not be written: the disk is full." in err
