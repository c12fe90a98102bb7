"""`dragoman adapt`: the document that it writes, what is refused, and the way from a checkpoint to a translator."""

from __future__ import annotations

import random
import shlex
import tomllib
from pathlib import Path

import pytest

import transformers_checkpoints
from dragoman.advice import measurement
from dragoman.config.stages import load_stages
from random_models import random_model
from small_run import Cli, digit_pairs, write_lines

SIDES = {
    "en": "a dog runs across the field two people sit on bench",
    "de": "ein hund über feld zwei leute bank und auf",
}
ADAPT = ("adapt", "model", "n.en", "n.xx", "--languages", "en", "xx", "--budget", "5 min")


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measurement, "_SECONDS", 0.02)
    monkeypatch.setattr(measurement, "_SECONDS_PER_SIZE", 0.02)
    monkeypatch.chdir(tmp_path)


def digits() -> None:
    """A random model from English to xx in the folder model, and pairs."""
    random_model(Path(), {"encoder_layers": 2})
    for side, name in enumerate(("n.en", "n.xx")):
        write_lines(Path(name), [pair[side] for pair in digit_pairs(300, longest=9)])


def test_the_document_has_a_stage_for_each_step_and_the_costs_are_printed(cli: Cli) -> None:
    digits()
    code, out, err = cli(*ADAPT, "--encoder-layers", "1")
    assert (code, out) == (0, b"dragoman train en-xx.toml\n"), err
    for row in ("small", "final"):
        assert any(line.startswith(row) for line in err.splitlines()), err
    assert "1 of 2 encoder layers" in err and "all weights" in err and "validation target: " in err
    small, final = tomllib.loads(Path("en-xx.toml").read_text(encoding="utf-8"))["stage"]
    assert small["prune"]["source"] == ["train.en"] and small["prune"]["encoder_layers"] == 1
    assert final["train"]["init_from"] == "stage:small"
    stages = load_stages("en-xx.toml", run="run")
    assert stages[1].config.model.encoder_layers == 1  # type: ignore[union-attr]


@pytest.mark.thorough
def test_adapters_are_trained_if_memory_is_short(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    digits()
    monkeypatch.setattr("dragoman.models.size.available_memory", lambda device=None: 130_000)
    code, _, err = cli(*ADAPT)
    assert code == 0 and "LoRA, " in err, err
    assert tomllib.loads(Path("en-xx.toml").read_text(encoding="utf-8"))["train"]["lora"] == {"rank": 8}
    monkeypatch.setattr("dragoman.models.size.available_memory", lambda device=None: 10_000)
    code, _, err = cli(*ADAPT, "--out", "b.toml")
    assert code == 2 and "need 0.0 GB" in err and not Path("b.toml").exists() and not Path("b-data").exists()


@pytest.mark.parametrize(("changes", "problems"), {
    ("n.xx", "n.en", "--languages", "xx", "en"): ["the model translates en to xx, but the text is xx to en"],
    ("n.en", "gone", "--languages", "en", "zz", "--encoder-layers", "3"):
        ["is en to zz", "no such file: gone", "accepted: 1 to 2"],
}.items())  # fmt: skip
def test_all_problems_are_reported_before_any_work(changes: tuple[str, ...], problems: list[str], cli: Cli) -> None:
    digits()
    code, out, err = cli("adapt", "model", *changes)
    assert code == 2 and out == b"" and all(problem in err for problem in problems), err
    assert not list(Path().glob("*.toml")) and not list(Path().glob("*-data"))


@pytest.mark.thorough
def test_a_checkpoint_on_a_stick_becomes_a_translator(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_checkpoints, "_TAGS", [])
    transformers_checkpoints.marian_checkpoint(Path("usb/opus-mt-en-de"))
    for side, words in SIDES.items():
        draw = random.Random(1)
        write_lines(Path(f"talks.{side}"), [" ".join(draw.sample(words.split(), 7)) for _ in range(300)])
    page = (Path(__file__).parents[2] / "docs" / "adapt.md").read_text(encoding="utf-8")
    adapt, train, serve = (shlex.split(line)[1:] for line in page.split("```sh\n")[1].splitlines()[:3])
    code, _, err = cli(*adapt, "--decoder-layers", "2")
    assert code == 0 and "written: en-de-model" in err, err
    assert cli("doctor", train[1])[0] == 0
    code, _, err = cli(*train, "train.budget=4 steps", "train.device=cpu")
    assert code == 0 and "1 layers dropped" in err, err
    assert cli("translate", serve[1], stdin=b"a dog runs\n")[1].strip()
