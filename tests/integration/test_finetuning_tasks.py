"""Fine-tuning of every architecture and task, and by several processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tomli_w
import torch
from test_every_task import KINDS, config_of, write_data

from dragoman.config import load_config
from dragoman.errors import DataError
from dragoman.io.weights import load_file
from dragoman.models.model_folder import find_model, list_checkpoints, read_config
from dragoman.training.run import open_run
from dragoman.training.trainer import train
from processes import needs_gloo, run_processes
from small_run import small_config, trained, weights, write_lines

WITHOUT_LAYERS = ("recurrent lines", "recurrent masked", "recurrent tagged", "recurrent last")
TRANSLATORS = {
    "lstm": ("model.architecture=lstm",),
    "gru": ("model.architecture=gru", "model.directions=1", "tokenizer.shared=false"),
    "convolutional": ("model.architecture=convolutional",),
    "ssru": ("model.decoder_self=ssru", "model.position.kind=none"),
    "batch norm": ("model.norm.kind=batch",),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def tuning(folder: Path, section: dict[str, object]) -> Path:
    """Write a configuration without [model] and [tokenizer]."""
    train = {
        "init_from": "base", "budget": "6 steps", "batch_tokens": 120, "log_every": 1, "validate_every": "3 steps",
        "device": "cpu", "threads": 1, "schedule": {"kind": "constant", "rate": 0.01},
    }  # fmt: skip
    path = folder / "tune.toml"
    path.write_text(tomli_w.dumps({"data": section, "train": train}))
    return path


def tune_and_resume(toml: Path, overrides: tuple[str, ...]) -> Path:
    """Fine-tune; resume another run without the model; compare the bytes."""
    place = toml.parent
    train(load_config(toml, overrides), place / "whole")
    train(load_config(toml, [*overrides, "train.budget=4 steps"]), place / "cut")
    (place / "base").rename(place / "hidden")
    train(load_config(toml, overrides, run=place / "cut"), place / "cut")
    assert weights(place / "cut") == weights(place / "whole")
    return place / "whole"


@pytest.mark.parametrize("name", KINDS)
def test_every_task(name: str, data: Path, tmp_path: Path) -> None:
    config = config_of(name, data, "train.budget=12 steps", "train.validate_every=12 steps", "train.threads=1")
    shutil.copytree(find_model(train(config, tmp_path / "first").run), tmp_path / "base")
    section = {key: value for key, value in {"root": str(data), **KINDS[name][0]}.items() if value is not None}
    toml = tuning(tmp_path, section)
    lora = () if name in WITHOUT_LAYERS else ("train.lora.rank=2",)
    original = load_file(tmp_path / "base" / "model.safetensors")
    run = tune_and_resume(toml, lora)
    assert read_config(run).model == config.model
    found = load_file(find_model(run) / "model.safetensors")
    kept = [key for key in found if torch.equal(found[key], original[key])]
    assert bool(kept) == bool(lora) and len(kept) < len(found)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_every_translator(name: str, tmp_path: Path) -> None:
    plain = ("model.d_ff=24", "model.n_heads=2") if name in ("ssru", "batch norm") else ()
    base = trained(tmp_path / "first", *TRANSLATORS[name], *plain, "train.budget=6 steps")
    shutil.copytree(find_model(base), tmp_path / "base")
    document = small_config(tmp_path / "first" / "data").model_dump(mode="json", exclude_none=True)["data"]
    run = tune_and_resume(tuning(tmp_path, document), ("train.lora.rank=2",) if plain else ())
    original, found = (load_file(find_model(place) / "model.safetensors") for place in (base, run))
    assert any(not torch.equal(found[key], original[key]) for key in found)


def test_labels_that_the_model_does_not_have_are_refused(data: Path, tmp_path: Path) -> None:
    shutil.copytree(find_model(train(config_of("mean", data), tmp_path / "first").run), tmp_path / "base")
    write_lines(tmp_path / "other.tsv", ["red\tthe red dog", "gren\tthe dog"])
    toml = tuning(tmp_path, {"root": str(tmp_path), "kind": "labelled", "train": ["other.tsv"]})
    with pytest.raises(DataError, match=r"line 2: the label 'gren'.*accepted: plain, red"):
        open_run(load_config(toml), tmp_path / "run")


# ---------------------------------------------------------------------------------------------------------- processes


def tune_in_process(toml: Path, overrides: tuple[str, ...], run: Path) -> None:
    train(load_config(toml, overrides, run=run), run)


@needs_gloo
@pytest.mark.parametrize("kind", ["replicated", "adapters", "fsdp"])
def test_several_processes_start_from_the_same_model(kind: str, tmp_path: Path) -> None:
    base = trained(tmp_path / "first", "train.budget=6 steps", "model.dropout=0")
    shutil.copytree(find_model(base), tmp_path / "base")
    document = small_config(tmp_path / "first" / "data").model_dump(mode="json", exclude_none=True)["data"]
    toml = tuning(tmp_path, document)
    changes = {"replicated": (), "adapters": ("train.lora.rank=2",), "fsdp": ("train.parallel.kind=fsdp",)}[kind]
    common = ("train.optimizer.kind=sgd", "train.schedule.rate=0.5", "train.batch_tokens=200")
    train(load_config(toml, [*common, *(changes if kind != "fsdp" else ()), "train.accumulate=2"]), tmp_path / "one")
    run_processes(2, tune_in_process, toml, (*common, *changes), tmp_path / "two")
    one, two = (load_file(find_model(tmp_path / name) / "model.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-5)
    run_processes(2, tune_in_process, toml, (*common, *changes, "train.budget=4 steps"), tmp_path / "cut")
    (tmp_path / "base").rename(tmp_path / "hidden")
    run_processes(2, tune_in_process, toml, (*common, *changes), tmp_path / "cut")
    assert weights(tmp_path / "cut") == weights(tmp_path / "two")
    assert list_checkpoints(tmp_path / "cut")
