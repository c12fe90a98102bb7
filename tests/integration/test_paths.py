"""A configuration is used from another folder: paths start at the TOML file, and a run can be resumed from anywhere."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dragoman.config import dump_toml
from dragoman.evaluation.compare.runs import compare_runs
from small_run import Cli, small_config, weights, write_corpus


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`project/tiny.toml` with its data in `project/data`; the current directory is `elsewhere`."""
    write_corpus(tmp_path / "project" / "data")
    (tmp_path / "elsewhere").mkdir()
    steps = ("train.budget=6 steps", "train.validate_every=3 steps", "train.schedule.kind=constant")
    config = small_config(Path("data"), *steps)
    (tmp_path / "project" / "tiny.toml").write_text(dump_toml(config), encoding="utf-8")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "project"


def test_a_run_is_resumed_and_repeated_from_other_folders(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("train", "../project/tiny.toml", "--out", project / "runs" / "one")[0] == 0
    stored = tomllib.loads((project / "runs" / "one" / "config.toml").read_text(encoding="utf-8"))
    assert stored["data"]["root"] == "../../data"

    monkeypatch.chdir(project)
    assert cli("train", "tiny.toml", "train.budget=9 steps", "--out", "runs/one")[0] == 0
    assert cli("train", "tiny.toml", "train.budget=9 steps", "--out", "runs/whole")[0] == 0
    assert weights(Path("runs/one")) == weights(Path("runs/whole"))

    monkeypatch.chdir(project / "runs" / "whole")
    assert cli("train", "../one/config.toml", "--out", "../again")[0] == 0
    assert weights(Path("../again")) == weights(Path("../one"))
    assert cli("doctor", "../../tiny.toml")[0] == 0


def test_runs_in_different_folders_are_compared_by_the_data_they_read(project: Path, cli: Cli) -> None:
    write_corpus(project / "other" / "data")
    (project / "tiny.toml").rename(project / "other" / "tiny.toml")
    for out in ("runs/one", "runs/deeper/two"):
        assert cli("train", project / "other" / "tiny.toml", "--out", out)[0] == 0
    roots = [run.config["data.root"] for run in compare_runs(["runs/one", "runs/deeper/two"]).runs]
    assert roots == [str(project / "other" / "data")] * 2


def test_a_file_that_is_missing_is_named_with_its_folder(project: Path, cli: Cli) -> None:
    (project / "data" / "valid.src").rename(Path("valid.src"))
    code, _, err = cli("train", "../project/tiny.toml", "--out", "run")
    assert code == 2 and f"data.valid.source: no such file: {project / 'data' / 'valid.src'} (it exists in the" in err
    assert "relative paths start at the folder of the TOML file, or at data.root in it; data.root=FOLDER" in err
    Path("valid.src").rename(project / "data" / "valid.source")
    _, _, err = cli("train", "../project/tiny.toml", "--out", "run")
    assert f"{project / 'data' / 'valid.src'} (did you mean 'valid.source'?); relative paths" in err
