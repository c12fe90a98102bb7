"""P3: a fine-tuning that is killed at any moment and resumed ends with the same bytes, without the original model."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from dragoman.io.run_log import read_log
from dragoman.models.model_folder import find_model, list_checkpoints, read_pointer
from processes import fork_server
from small_run import trained, tune_in_child, write_corpus

pytestmark = pytest.mark.slow
KILLS = 3  # of each mode
MODES: dict[str, tuple[str, ...]] = {
    "all weights": ("train.ema=0.9", "model.dropout=0.2"),
    "lora": ("train.lora.rank=2", "train.lora.alpha=4", "train.schedule.peak=0.05", "model.dropout=0.2"),
    "imported": ("model.dropout=0.2",),
}
IMPORTED = Path(__file__).parents[1] / "golden" / "imported_v1"
"""A MarianMT checkpoint."""
TOML = """
[data]
root = "data"
source_language = "en"
target_language = "xx"
train = [{ source = "train.src", target = "train.tgt" }]
valid = { source = "valid.src", target = "valid.tgt" }

[train]
init_from = "base"
budget = "30 steps"
batch_tokens = 300
log_every = 1
validate_every = "6 steps"
save_every = "2 steps"
validate_sentences = 5
keep = 9
average = 2
device = "cpu"
threads = 1
schedule = { kind = "budget", peak = 1e-2, warmup = 2 }
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("base"), "train.budget=12 steps", "train.validate_every=12 steps")


@pytest.fixture
def place(tmp_path: Path, base: Path) -> Path:
    """A folder with `tune.toml`, its data, and the original model in `base`."""
    write_corpus(tmp_path / "data", train=120)
    shutil.copytree(find_model(base), tmp_path / "base")
    (tmp_path / "tune.toml").write_text(TOML)
    return tmp_path


def start(place: Path, mode: str, run: Path) -> Any:
    process = fork_server().Process(target=tune_in_child, args=(place / "tune.toml", MODES[mode], run))
    process.start()
    return process


def whole(run: Path) -> dict[str, Any]:
    """What must come out the same: all weights and adapters, the pointers, the losses of the log."""
    files = {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in (run / "checkpoints").glob("*/*.safetensors")
        if path.name in ("model.safetensors", "adapters.safetensors")
    }
    pointers = {name: str(read_pointer(run, name)).removeprefix(str(run)) for name in ("best", "last", "average")}
    scores = [(row["step"], row["valid_loss"]) for row in read_log(run) if "valid_loss" in row]
    return {"files": files, "pointers": pointers, "scores": scores}


@pytest.mark.parametrize("mode", list(MODES))
def test_kill_nine_at_random_moments(mode: str, place: Path) -> None:
    if mode == "imported":
        shutil.rmtree(place / "base")
        shutil.copytree(IMPORTED, place / "base")
    start(place, mode, place / "uninterrupted").join()
    expected = whole(place / "uninterrupted")
    assert len(expected["scores"]) >= 5
    assert any(name.endswith("adapters.safetensors") for name in expected["files"]) == (mode == "lora")

    draw = random.Random(mode)
    killed, runs, longest, resumed = 0, 0, 1.0, 0
    while killed < KILLS or not resumed:
        runs += 1
        run = place / f"killed{runs}"
        while not (run / "ended").exists():
            before = len(read_log(run))
            has_checkpoint = bool(list_checkpoints(run))
            hidden = place / "elsewhere"
            if has_checkpoint:  # a resumed run needs nothing of the original model
                (place / "base").rename(hidden)
            process = start(place, mode, run)
            process.join(draw.uniform(0, longest) if killed < KILLS or not resumed else None)
            is_killed = process.is_alive()
            if is_killed:
                process.kill()
                process.join()
                killed += 1
                if len(read_log(run)) <= before:
                    longest *= 1.5  # a slow machine: sittings that come to train at all
            else:
                assert process.exitcode == 0
                (run / "ended").touch()
            if has_checkpoint:
                hidden.rename(place / "base")
                resumed += 1
        assert whole(run) == expected
