"""The measuring programs run: each in its shortest form, for what it prints."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.decoding.native.library import load_native
from small_run import write_corpus, write_toml

BENCH = Path(__file__).parents[2] / "bench"
GOLDEN = Path(__file__).parents[1] / "golden" / "model_v1"
pytestmark = pytest.mark.slow
native = pytest.mark.skipif(load_native() is None, reason="no native engine")


def output_of(name: str, *arguments: str) -> str:
    """What a program prints, errors last.  One thread, so that it may run beside others."""
    command = [sys.executable, str(BENCH / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_train(data_root: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setenv("DRAGOMAN_DATA", str(data_root))
    options = ("--contestants", "dragoman", "pytorch", "marian", "--rounds", "1", "--steps", "2", "--warmup", "1")
    out = output_of("train.py", *options, "--tokens", "300", "--precision", precision, "--peak", "1")
    for name in ("dragoman", "marian", "pytorch"):
        (row,) = (line for line in out.splitlines() if line.startswith(f"| {name} | "))
        assert row.count("%") == 1  # model FLOP utilization


@pytest.mark.parametrize("is_staged", [False, True])
def test_kill(tmp_path: Path, is_staged: bool) -> None:
    config = write_toml(tmp_path / "tiny.toml", write_corpus(tmp_path / "data"), "train.budget=400 steps")
    with config.open("a", encoding="utf-8") as file:
        file.write('[[stage]]\nname = "a"\n[[stage]]\nname = "b"\ntrain.init_from = "stage:a"\n' * is_staged)
    out = output_of("kill.py", str(config), "train.save_every=0.2 s", "train.validate_every=50 steps", "--kills", "3")
    assert "same bytes: True" in out


@native
@pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")
def test_decode() -> None:
    model = Path(__file__).parents[1] / "golden" / "model_v1"
    for text in ([], ["--text-to-text", "--models", str(model), "--text", __file__]):
        out = output_of("decode.py", "--quick", "--peers", "ctranslate2-int8", "--sentences", "40", *text)
        assert "times as fast" in out and "ctranslate2-int8" in out


@native
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_fuzzing() -> None:
    out = output_of("fuzz_native.py", "--seconds", "20")
    kinds = ("damaged: refused", "valid: answered", "bypassing_python: refused", "session: answered")
    assert all(kind in out for kind in kinds)


def test_mutation(tmp_path: Path) -> None:
    pytest.importorskip("cosmic_ray")
    work = ["--work", str(tmp_path), "--workers", "1"]
    assert "0 of them not used" in output_of("mutation.py", *work, "record", "tests/unit/test_nn_state.py")
    out = output_of("mutation.py", *work, "run", "nn", "--sample", "6", "--control")
    assert "killed" not in out and "no coverage" in out  # the source is unchanged
    output_of("mutation.py", *work, "run", "nn", "--sample", "40")
    assert "killed" in output_of("mutation.py", *work, "report")


@native
def test_serve(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    model = shutil.copytree(GOLDEN, tmp_path / "model")
    (tmp_path / "text").write_text("1 2 3\n4 5\n", encoding="utf-8")
    options = ("--rounds", "1", "--seconds", "0.3", "--clients", "1", "4", "--out", str(tmp_path / "serve.jsonl"))
    out = output_of("serve.py", str(model), "--text", str(tmp_path / "text"), *options)
    rows = [json.loads(line) for line in (tmp_path / "serve.jsonl").read_text().splitlines()]
    assert {row["server"] for row in rows} == {"dragoman", "ctranslate2"} and "| 4 clients | dragoman |" in out
    assert all(set(row["statuses"]) == {"200"} for row in rows if "statuses" in row)


@native
@pytest.mark.parametrize("limit", [None, 2])
def test_serve_soak(limit: int | None, tmp_path: Path) -> None:
    """With a limit of two tokens, some of eight clients are refused; memory may grow within a second."""
    model = shutil.copytree(GOLDEN, tmp_path / "model")
    (tmp_path / "text").write_text("1 2 3\n4 5\n", encoding="utf-8")
    options = [] if limit is None else ["--waiting-tokens", str(limit)]
    command = ["--text", str(tmp_path / "text"), "--clients", "8", "--minutes", "0.02", "--growth", "9", *options]
    row = json.loads(output_of("serve_soak.py", str(model), *command).splitlines()[0])
    assert set(row["statuses"]) == ({"200"} if limit is None else {"200", "429"}) and row["wrong"] == 0
