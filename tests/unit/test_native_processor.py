"""The number of cores that a process may use: affinity, control group quotas, OMP_NUM_THREADS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.device import usable_cores

CORES = 12


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve usable cores and no OMP_NUM_THREADS."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(CORES)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def system(root: Path, groups: str, **files: str) -> Path:
    """A root folder with /proc/self/cgroup and files below /sys/fs/cgroup ("__" is "/", "_dot_" is ".")."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_without_limits_it_is_the_affinity(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == CORES
    assert usable_cores(system(tmp_path / "max", "0::/\n", cpu_dot_max="max 100000\n")) == CORES
    odd = system(tmp_path / "odd", "\nnonsense\n:::\n7:cpu\n", cpu_dot_max="what is this\n")
    assert usable_cores(odd) == CORES


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("1000 100000", 1), ("9900000 100000", CORES),
        ("0 100000", CORES), ("200000 0", CORES), ("200000", CORES), ("", CORES), ("\N{SUPERSCRIPT TWO} 1", CORES),
    ],
)  # fmt: skip
def test_the_quota_of_a_container(quota: str, cores: int, tmp_path: Path) -> None:
    """`docker run --cpus=2`: in its own namespace the group of the process is the root."""
    assert usable_cores(system(tmp_path, "0::/\n", cpu_dot_max=f"{quota}\n")) == cores


def test_the_least_quota_of_all_groups_around_the_process(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        "0::/outer/middle/own\n",
        outer__cpu_dot_max="400000 100000\n",
        outer__middle__cpu_dot_max="300000 100000\n",
        outer__middle__own__cpu_dot_max="max 100000\n",
        outer__other__cpu_dot_max="100000 100000\n",
    )
    assert usable_cores(root) == 3


@pytest.mark.parametrize("folder", ["cpu,cpuacct", "cpu"])
def test_quotas_of_version_1(folder: str, tmp_path: Path) -> None:
    groups = "9:memory:/own\n3:cpuset:/own\n2:cpu,cpuacct:/own\n1:name=systemd:/own\n"
    files = {f"{folder}__own__cpu_dot_cfs_quota_us": "400000\n", f"{folder}__own__cpu_dot_cfs_period_us": "200000\n"}
    assert usable_cores(system(tmp_path / "two", groups, **files)) == 2
    files[f"{folder}__own__cpu_dot_cfs_quota_us"] = "-1\n"
    assert usable_cores(system(tmp_path / "none", groups, **files)) == CORES


def test_version_1_in_a_container_without_a_namespace(tmp_path: Path) -> None:
    """The path is the host's, and what is mounted is the group itself."""
    files = {"cpu__cpu_dot_cfs_quota_us": "500000\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}
    assert usable_cores(system(tmp_path, "4:cpu,cpuacct:/docker/0123abcd\n", **files)) == 5


@pytest.mark.parametrize(
    ("value", "cores"),
    [
        ("3", 3), (" 3 ", 3), ("3,2", 3), ("99", CORES), ("", CORES), ("0", CORES), ("-2", CORES), ("two", CORES),
        ("\N{SUPERSCRIPT TWO}", CORES), ("\N{ARABIC-INDIC DIGIT TWO}", CORES), ("1" * 5000, CORES), (",", CORES),
    ],
)  # fmt: skip
def test_omp_num_threads(value: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invalid values set no limit; some of them satisfy str.isdigit() but not int()."""
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert usable_cores(tmp_path) == cores


def test_a_system_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1
