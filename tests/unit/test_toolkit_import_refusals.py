"""What the imports of OpenNMT-py, eole, JoeyNMT, fairseq, CTranslate2 and Marian's files refuse: no file is missed.

The tests of each family in tests/parity check the message with all reasons; here every file of a folder is removed or
truncated, and the numbers of layers and tokens are wrong.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ctranslate2_folders import foreign_folder
from imported_checks import refusal
from marian_files import marian_model
from toolkit_checkpoints import fairseq_checkpoint, joey_checkpoint, joey_settings, opennmt_checkpoint, opennmt_options

FOLDERS: dict[str, Callable[[Path], Any]] = {
    "opennmt": lambda path: opennmt_checkpoint(path, "biases", "opennmt"),
    "opennmt shards": lambda path: opennmt_checkpoint(path, "untied", "opennmt"),
    "eole": lambda path: opennmt_checkpoint(path, "tied", "eole"),
    "joeynmt": lambda path: joey_checkpoint(path, "pre"),
    "fairseq": lambda path: fairseq_checkpoint(path, "tied"),
    "ctranslate2": lambda path: foreign_folder(path, "fairseq"),
    "marian files": lambda path: marian_model(path, "two vocabularies"),
}
UNUSED = ("100.ckpt",)
"""Files that are not read."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a name, written when it is first needed."""
    folder = tmp_path_factory.mktemp("originals")

    def written_once(name: str) -> Path:
        if not (folder / name).exists():
            if name == "ctranslate2":
                pytest.importorskip("ctranslate2", reason="needs: pip install 'dragoman[formats]'")
            FOLDERS[name](folder / name)
        return folder / name

    return written_once


@pytest.mark.parametrize("part", [None, 0.0, 0.5], ids=["missing", "empty", "truncated"])
@pytest.mark.parametrize("name", FOLDERS)
def test_every_file_is_needed(name: str, part: float | None, originals: Callable[[str], Path], tmp_path: Path) -> None:
    original = originals(name)
    files = [path.name for path in sorted(original.iterdir()) if path.name not in UNUSED]
    assert len(files) >= 3
    for file in files:
        folder = Path(shutil.copytree(original, tmp_path / file / "checkpoint"))
        content = (folder / file).read_bytes()
        (folder / file).unlink()
        if part is not None:
            (folder / file).write_bytes(content[: int(part * len(content))])
        refusal(folder)


def test_the_model_of_one_side_is_not_used_for_both(originals: Callable[[str], Path], tmp_path: Path) -> None:
    """The model of the other side would segment the text into other pieces."""
    sides = {"opennmt": "{}.model", "joeynmt": "sp.{}.model", "ctranslate2": "{}.spm", "marian files": "{}vocab.spm"}
    for name, file in sides.items():
        source, target = (
            file.format(side)
            for side in (("src", "trg") if name in ("joeynmt", "marian files") else ("source", "target"))
        )
        folder = Path(shutil.copytree(originals(name), tmp_path / name / "checkpoint"))
        (folder / source).unlink()
        assert f"{target});" in refusal(folder)


def test_a_checkpoint_without_weights(tmp_path: Path) -> None:
    folder = joey_checkpoint(tmp_path / "checkpoint", "pre")
    torch.save({"model_state": {}}, folder / "best.ckpt")
    assert "missing tensors: src_embed.lut.weight" in refusal(folder)


# ------------------------------------------------------------------------------------------------------ layers, tokens


def _eole(folder: Path, layers: int) -> Path:
    opennmt_checkpoint(folder, "tied", "eole")
    settings = json.loads((folder / "config.json").read_text())
    settings["model"]["decoder"]["layers"] = layers
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def _opennmt(folder: Path, layers: int) -> Path:
    return opennmt_checkpoint(folder, "tied", "opennmt", settings=opennmt_options("tied") | {"dec_layers": layers})


def _joeynmt(folder: Path, layers: int) -> Path:
    settings = joey_settings("post")
    settings["model"]["decoder"]["num_layers"] = layers
    return joey_checkpoint(folder, "post", settings=settings)


LAYERS: dict[str, tuple[Callable[[Path, int], Path], str]] = {
    "opennmt": (_opennmt, "decoder.transformer_layers"),
    "eole": (_eole, "decoder.transformer_layers"),
    "joeynmt": (_joeynmt, "decoder.layers"),
    "fairseq": (lambda path, layers: fairseq_checkpoint(path, "tied", decoder_layers=layers), "decoder.layers"),
}  # fmt: skip
"""How a model of two layers is written whose settings have another number; the names of its tensors."""


@pytest.mark.parametrize("name", LAYERS)
def test_other_numbers_of_layers(name: str, tmp_path: Path) -> None:
    write, tensors = LAYERS[name]
    assert f"missing tensors: {tensors}.2." in refusal(write(tmp_path / "more" / "checkpoint", 3))
    assert f"unused tensors: {tensors}.1." in refusal(write(tmp_path / "less" / "checkpoint", 1))


def _ctranslate2_changed(folder: Path, before: bytes, after: bytes) -> Path:
    pytest.importorskip("ctranslate2", reason="needs: pip install 'dragoman[formats]'")
    path = foreign_folder(folder, "marian") / "model.bin"
    content = path.read_bytes()
    assert before in content and len(before) == len(after)
    path.write_bytes(content.replace(before, after))
    return folder


def test_layers_and_architecture_of_ctranslate2(tmp_path: Path) -> None:
    """The number of layers is that of the variables."""
    folder = _ctranslate2_changed(tmp_path / "layers" / "checkpoint", b"decoder/layer_1/", b"decoder/layer_2/")
    assert "decoder/layer_" in refusal(folder)
    folder = _ctranslate2_changed(tmp_path / "name" / "checkpoint", b"TransformerSpec", b"TransformerXpec")
    assert "specification = 'TransformerXpec'; accepted: 'TransformerSpec'" in refusal(folder)


@pytest.mark.parametrize("change", [-2, 2])
def test_other_numbers_of_tokens(change: int, tmp_path: Path) -> None:
    def changed(tokens: list[str]) -> list[str]:
        return tokens[:change] if change < 0 else [*tokens, "more", "most"]

    folder = opennmt_checkpoint(tmp_path / "eole" / "checkpoint", "tied", "eole")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary |= {side: changed(vocabulary[side]) for side in ("src", "tgt")}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    assert "the settings and the vocabulary require" in refusal(folder)

    folder = opennmt_checkpoint(tmp_path / "opennmt" / "checkpoint", "tied", "opennmt")
    content = torch.load(folder / "m.pt", weights_only=False)
    content["vocab"] |= {side: changed(content["vocab"][side]) for side in ("src", "tgt")}
    torch.save(content, folder / "m.pt")
    assert "the settings and the vocabulary require" in refusal(folder)

    folder = joey_checkpoint(tmp_path / "joeynmt" / "checkpoint", "post")
    for side in ("src", "trg"):
        path = folder / f"{side}_vocab.txt"
        path.write_text("\n".join(changed(path.read_text().split("\n")[:-1])) + "\n")
    assert "the settings and the vocabulary require" in refusal(folder)

    folder = fairseq_checkpoint(tmp_path / "fairseq" / "checkpoint", "tied")
    for path in folder.glob("dict.*.txt"):
        tokens = changed([line.split()[0] for line in path.read_text().splitlines()])
        path.write_text("".join(f"{token} 1\n" for token in tokens))
    assert "the settings and the vocabulary require" in refusal(folder)
