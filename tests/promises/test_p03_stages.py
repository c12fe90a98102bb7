"""P3 over stages: killed at any moment and started again, a run with stages ends with the same bytes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import tomli_w

from dragoman.config.stages import load_stages
from dragoman.training.stages import train_stages
from processes import fork_server
from small_run import digit_pairs, small_document, write_corpus, write_lines

KILLS = 4


def train_in_child(document: Path, run: Path) -> None:
    train_stages(load_stages(document, run=run))


def whole(run: Path) -> dict[str, bytes]:
    """The text and the weights of all stages."""
    names = ("*/text.*", "*/checkpoints/*/model.safetensors", "small/*.*", "*/best", "*/last", "stage")
    return {str(path.relative_to(run)): path.read_bytes() for name in names for path in run.glob(name)}


def staged(folder: Path) -> Path:
    """Back-translation with sampling, a student of an ensemble, and a fine-tuning after pruning."""
    write_corpus(folder / "data")
    few = str(write_lines(folder / "few", ["one"]))
    write_lines(folder / "data" / "mono.tgt", [target for _, target in digit_pairs(2300, seed=9)])
    document = small_document(folder / "data")
    document["train"] |= {"threads": 1, "save_every": "5 steps", "validate_every": "12 steps", "validate_sentences": 2}
    real = {"source": "train.src", "target": "train.tgt"}
    text = {"model": "stage:reverse", "text": "mono.tgt", "language": False, "sampling": True, "tag": "<bt>"}
    taught = {"model": "stage:first", "text": "train.src", "language": False, "beam": 2}
    document["model"]["encoder_layers"] = 2
    less = {"model": "stage:first", "source": few, "target": [few, "stage:taught"], "encoder_layers": 1}
    tuned = {"init_from": "stage:small", "start_share": 0.5}
    document["stage"] = [
        {"name": "reverse", "reverse": True},
        {"name": "bt", "back_translate": text},
        {"name": "first", "tokenizer": {"vocab_size": 60}, "data": {"train": [real, {"path": "stage:bt"}]}},
        {"name": "taught", "translate": taught},
        {"name": "small", "prune": less},
        {"name": "tuned", "train": tuned, "data": {"train": [real, {"path": "stage:taught"}]}},
    ]
    path = folder / "s.toml"
    path.write_text(tomli_w.dumps(document), encoding="utf-8")
    return path


def compare_killed_stages(folder: Path, kills: int, seed: str) -> None:
    """Run the stages without interruption, and again with kills at random moments, in the same folder."""
    document, run, draw, longest = staged(folder), folder / "run", random.Random(seed), 2.0
    process = fork_server().Process(target=train_in_child, args=(document, run))
    process.start()
    process.join()
    assert process.exitcode == 0
    expected = whole(run)
    assert len(expected) > 20 and b"encoder.layers.1." not in expected["small/model.safetensors"]
    shutil.rmtree(run)
    while kills:
        process = fork_server().Process(target=train_in_child, args=(document, run))
        process.start()
        process.join(draw.uniform(0, longest))
        if process.is_alive():
            process.kill()
            process.join()
            kills, longest = kills - 1, longest * 1.1  # until there is progress, however slow the machine
        else:
            assert process.exitcode == 0 and whole(run) == expected
            shutil.rmtree(run)
    train_in_child(document, run)
    assert whole(run) == expected


def test_stages_killed_at_random_moments_end_with_the_same_bytes(tmp_path: Path) -> None:
    compare_killed_stages(tmp_path, KILLS, "stages")
