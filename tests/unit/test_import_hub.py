"""Names of the Hugging Face Hub as sources of an import: which files are downloaded, and what errors say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from dragoman.errors import DragomanError, UsageError
from dragoman.formats.importing.checkpoint import is_hub_name
from dragoman.formats.importing.importer import import_model
from small_run import COMMAND, Cli
from transformers_checkpoints import marian_checkpoint

pytest.importorskip("transformers")
huggingface_hub: Any = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use
NAME = "someone/opus-mt-en-de"
COMMIT = "0123456789abcdef"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of the Hub, with weights for other programs, too."""
    folder = marian_checkpoint(tmp_path / "repository", "one layer, unscaled")
    (folder / "onnx").mkdir()
    for name in ("tf_model.h5", "rust_model.ot", "README.md", "onnx/config.json", "onnx/model.safetensors"):
        (folder / name).write_text("{}")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


@pytest.fixture
def cache(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder to which the files of the repository are copied instead of being downloaded."""
    folder = tmp_path / "cache" / COMMIT

    def copy(name: str, allow_patterns: Iterable[str], ignore_patterns: Iterable[str]) -> str:
        assert name == NAME
        files = [path.relative_to(repository).as_posix() for path in repository.rglob("*") if path.is_file()]
        kept = huggingface_hub.utils.filter_repo_objects(
            files, allow_patterns=list(allow_patterns), ignore_patterns=list(ignore_patterns)
        )
        for file in kept:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / file, folder / file)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", copy)
    return folder


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_name_is_downloaded_and_imported(weights: str, repository: Path, cache: Path, cli: Cli) -> None:
    """Pickles only if there are no safetensors, nothing in subfolders, and nothing for other programs."""
    if weights == "pytorch_model.bin":
        (repository / "model.safetensors").unlink()
    model = repository.parent / "model"
    code, out, err = cli("import", NAME, model)
    assert code == 0 and b"(marian, " in out, err
    files = {path.name for path in cache.iterdir()}
    assert {name for name in files if Path(name).suffix in (".safetensors", ".bin", ".h5", ".ot")} == {weights}
    assert {"config.json", "source.spm", "target.spm", "vocab.json"} <= files and "onnx" not in files
    assert json.loads((model / "import.json").read_text())["hub"] == {"name": NAME, "commit": COMMIT}


def test_a_folder_of_the_same_name_comes_first(
    repository: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(repository, tmp_path / NAME)
    monkeypatch.chdir(tmp_path)
    import_model(NAME, "model")
    assert not cache.exists() and "hub" not in json.loads((tmp_path / "model" / "import.json").read_text())


def test_without_a_network_a_name_is_refused_with_advice(tmp_path: Path) -> None:
    """With huggingface_hub installed and HF_HUB_OFFLINE=1."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [*COMMAND, "import", NAME, str(tmp_path / "model")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stdout == ""
    assert f"{NAME}: no such folder, and the model of the Hugging Face Hub cannot be downloaded" in done.stderr
    assert f"hf download {NAME} --local-dir FOLDER" in done.stderr and "offline" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "model").exists()


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def snapshot_download(name: str, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def test_a_name_without_a_model_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    kind = pytest.importorskip("huggingface_hub.errors").GatedRepoError
    fail(monkeypatch, kind.__new__(kind, "401 Client Error"))
    code, _, err = cli("import", NAME, tmp_path / "model")
    assert code == 2 and "no model of the Hugging Face Hub that you may read" in err and "hf auth login" in err
    assert not (tmp_path / "model").exists()


def test_a_broken_download_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, RuntimeError("the connection was closed"))
    with pytest.raises(DragomanError, match=r"cannot be downloaded \(the connection was closed\)"):
        import_model(NAME, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_downloaded_for_an_invalid_request(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(UsageError, match="already exists"):
        import_model(NAME, tmp_path / "model")
    assert not cache.exists()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (NAME, True), ("Helsinki-NLP/opus-mt-en-de", True), ("gpt2", False), ("a/b/c", False), ("/a/b", False),
        ("../b", False), ("./b", False), (".", False), ("a/.b", False), ("ä/b", False),
    ],
)  # fmt: skip
def test_names_of_the_hub(source: str, expected: bool) -> None:
    assert is_hub_name(Path(source)) == expected
