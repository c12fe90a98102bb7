"""Training by two workers of Ray on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from dragoman.config import dump_toml
from dragoman.data import spelled_numbers
from dragoman.interpret.demo import demo_config
from dragoman.io.run_log import read_log
from dragoman.models.model_folder import list_checkpoints
from dragoman.pipelines.translation import Translator
from processes import run_processes
from small_run import COMMAND, train_in_child, weights, write_corpus, write_toml

pytestmark = pytest.mark.slow
STEPS = ("train.budget=20 steps", "train.parallel.kind=fsdp")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    if problem := subprocess.run(
        [COMMAND[0], "-c", "import ray.train.torch"], capture_output=True, text=True, check=False
    ).stderr:
        pytest.skip(f"Ray Train cannot be imported: {problem.splitlines()[-1]}")
    return write_corpus(tmp_path / "data", train=130)


def command(data: Path, run: Path, *overrides: str) -> list[str]:
    config = write_toml(run.parent / "small.toml", data, *overrides)
    return [*COMMAND, "train", str(config), "--ray", "--workers", "2", "--out", str(run)]


def on_ray(data: Path, run: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(data, run, *overrides), capture_output=True, text=True, timeout=300, check=False, cwd=run.parent
    )


def test_workers_train_as_the_processes_of_torchrun(data: Path, tmp_path: Path) -> None:
    """The same bytes; then an error of the workers is one message."""
    done = on_ray(data, tmp_path / "run", *STEPS)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("done: ") == 1 and "step 20" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "ray").exists()
    run_processes(2, train_in_child, data, STEPS, tmp_path / "other" / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "other" / "run")
    Translator.load(tmp_path / "run").translate(["one two"])

    refused = on_ray(data, tmp_path / "run", *STEPS, "model.d_model=18")
    assert refused.returncode == 2 and "Traceback" not in refused.stderr, refused.stderr
    assert refused.stderr.count("model.d_model: the run has 16, the configuration 18") == 1


def test_workers_learn_the_corpus_of_the_demo(data: Path, tmp_path: Path) -> None:
    config = demo_config(spelled_numbers.write(tmp_path / "corpus"), ["train.budget=4 epochs"])
    (tmp_path / "demo.toml").write_text(dump_toml(config), encoding="utf-8")
    options = [str(tmp_path / "demo.toml"), "--ray", "--workers", "2", "--out", str(tmp_path / "run")]
    done = subprocess.run([*COMMAND, "train", *options], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["bleu"] for row in read_log(tmp_path / "run") if "bleu" in row][-1] > 80


def test_a_worker_is_killed_and_the_run_is_resumed(data: Path, tmp_path: Path) -> None:
    own = ("train.budget=60 steps", "train.save_every=2 steps", "train.validate_every=20 steps")
    run = tmp_path / "run"
    driver = subprocess.Popen(command(data, run, *own), stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    while not list_checkpoints(run):
        assert driver.poll() is None
        time.sleep(0.05)
    os.kill(json.loads((run / ".lock.json").read_text())["process"], signal.SIGKILL)
    _, text = driver.communicate(timeout=300)
    assert driver.returncode == 1 and "repeat the command" in text and "Traceback" not in text, text
    assert text.count("dragoman: ") == 1
    done = on_ray(data, run, *own)
    assert done.returncode == 0, done.stderr
    assert read_log(run)[-1]["step"] == 60
    run_processes(2, train_in_child, data, own, tmp_path / "other" / "run")
    assert weights(run) == weights(tmp_path / "other" / "run")


def test_ctrl_c_ends_the_workers(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    driver = subprocess.Popen(
        command(data, run, "train.budget=100000 steps"), stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    while not list_checkpoints(run):
        assert driver.poll() is None
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    _, text = driver.communicate(timeout=300)
    assert driver.returncode == 130 and "interrupted; resume from the last checkpoint with: dragoman train" in text
    assert "Traceback" not in text and not (run / "ray").exists()
