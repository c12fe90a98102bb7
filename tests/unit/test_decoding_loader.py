"""The packed model of a model folder: what it depends on, and damaged, outdated or unwritable files."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.config import parse_config
from dragoman.decoding import SearchSettings
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.library import load_native, unavailable_reason
from dragoman.errors import ModelFolderError, UsageError
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import learn_tokenizer
from small_run import full_disk, replace_file

native = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")
GOLDEN = Path(__file__).parents[1] / "golden" / "model_v1"
LINES = ["one two three", "four", "nine eight seven six five"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return shutil.copytree(GOLDEN, tmp_path / "model")


def reconfigure(folder: Path, section: str, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config[section] |= changes
    replace_file(folder, "config.json", json.dumps(config).encode())


def scores(folder: Path, **options: Any) -> list[float]:
    return [found.log_prob for found in Translator.load(folder, **options).translate(LINES)]


# ---------------------------------------------------------------------------------------------- what it was made from


@native
@pytest.mark.parametrize(
    "changes",
    [{"activation": "gelu"}, {"position": {"kind": "rotary", "base": 500.0}}, {"norm": {"kind": "rms", "eps": 0.05}}],
    ids=["activation", "position", "norm"],
)
def test_both_backends_follow_the_same_configuration(changes: dict[str, Any], model: Path) -> None:
    """The weights are the same, but the model uses them differently."""
    before = scores(model, engine="native", quantize="none")
    reconfigure(model, "model", **changes)
    fast = scores(model, engine="native", quantize="none")

    assert fast == pytest.approx(scores(model, engine="pytorch"), abs=1e-4)
    assert fast != pytest.approx(before, abs=1e-2)


@native
def test_a_translator_is_not_copied(model: Path) -> None:
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(UsageError, match="cannot be copied or pickled; load it in each process"):
            copied(Translator.load(model, engine="native"))


@native
def test_longer_training_texts_give_more_positions(model: Path) -> None:
    positions = [Translator.load(model, engine="native").backend.engine.positions]  # type: ignore[attr-defined]
    limits = json.loads((GOLDEN / "config.json").read_text())["data"]["filter"]
    reconfigure(model, "data", filter=limits | {"max_tokens": 700})
    positions += [Translator.load(model, engine="native").backend.engine.positions]  # type: ignore[attr-defined]
    assert positions == [1024, 1400]


@native
@pytest.mark.parametrize(
    "changes",
    [
        {"package_version": "0.0.1"}, {"version": 1}, {"precision": "float32"}, {"target_size": 55},
        {"shared": False}, {"positions": 1023}, {"weights": "0" * 64}, {"model": {}}, {"sha256": "0" * 64},
        {"sha256": None},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_a_record_that_differs_in_anything_packs_again(changes: dict[str, Any], model: Path) -> None:
    right = scores(model, quantize="int8")
    record = model / "packed" / "int8.json"
    good = record.read_text()
    assert json.loads(good)["package_version"] == dragoman.__version__
    packed = (model / "packed" / "int8.bin").stat().st_ino
    Translator.load(model, quantize="int8")
    assert (model / "packed" / "int8.bin").stat().st_ino == packed, "packed once"
    record.write_text(json.dumps(json.loads(good) | changes))

    assert scores(model, quantize="int8") == right
    assert record.read_text() == good
    assert (model / "packed" / "int8.bin").stat().st_ino != packed


@native
@pytest.mark.parametrize(
    "content", ["", "[]", "3", "null", "{}", "[" * 9000, "1" * 9000, "\udcff", "{" + " " * (2 << 20)]
)
def test_an_invalid_record_packs_again(content: str, model: Path) -> None:
    right = scores(model, quantize="int8")
    record = model / "packed" / "int8.json"
    good = record.read_text()
    record.write_bytes(content.encode("utf-8", "surrogateescape"))

    assert scores(model, quantize="int8") == right
    assert record.read_text() == good


OTHER_KINDS = """
import itertools, json, os, shutil, sys
from pathlib import Path
from dragoman import Translator
folder, lines = Path(sys.argv[1]), json.loads(sys.argv[2])
kinds = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
}
for name, kind in itertools.product(["int8.json", "int8.bin"], kinds):
    path = folder / "packed" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    kinds[kind](path)
    print(json.dumps([t.log_prob for t in Translator.load(folder, quantize="int8").translate(lines)]), flush=True)
"""


@native
def test_a_packed_file_of_another_file_type_is_replaced(model: Path) -> None:
    """In a separate process, which would hang if a pipe were opened or a device read to its end."""
    right = scores(model, quantize="int8")
    arguments = [str(model), json.dumps(LINES)]
    child = subprocess.run([sys.executable, "-c", OTHER_KINDS, *arguments], capture_output=True, text=True, timeout=300)

    assert child.returncode == 0, child.stderr
    assert [json.loads(line) for line in child.stdout.splitlines()] == [right] * 8


# -------------------------------------------------------------------------------------------- a file that is truncated

TRUNCATED = """
import json, os, sys
from dragoman import Translator
folder, size, lines = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
translator = Translator.load(folder, quantize="int8", engine="native", threads=1)
os.truncate(os.path.join(folder, "packed", "int8.bin"), size)
print(json.dumps([found.log_prob for found in translator.translate(lines)]))
"""


@native
@pytest.mark.parametrize("size", [0, 100, 2000])
def test_a_packed_file_that_is_truncated_while_it_is_in_use(size: int, model: Path) -> None:
    """A memory-mapped file would end the process with SIGBUS."""
    right = scores(model, quantize="int8")
    arguments = [str(model), str(size), json.dumps(LINES)]
    child = subprocess.run([sys.executable, "-c", TRUNCATED, *arguments], capture_output=True, text=True, timeout=300)

    assert child.returncode == 0, (child.returncode, child.stderr)
    assert json.loads(child.stdout) == right
    assert scores(model, quantize="int8") == right  # and it is packed again


@native
def test_changes_of_the_file_after_loading_have_no_effect(model: Path) -> None:
    scores(model, quantize="int8")
    packed = model / "packed" / "int8.bin"
    engine = Engine(packed)
    before = engine.search([[5, 6, 3]], [9], SearchSettings(beam=2))
    with packed.open("r+b") as file:
        file.write(b"\0" * packed.stat().st_size)
    assert engine.search([[5, 6, 3], [7, 8, 9, 3]], [9, 9], SearchSettings(beam=2))[:1] == before
    assert hashlib.sha256(engine.content).hexdigest() != hashlib.sha256(packed.read_bytes()).hexdigest()


# ---------------------------------------------------------------------------------------- folders that do not fit


def test_a_path_of_any_type_is_accepted(model: Path) -> None:
    class Folder:
        def __fspath__(self) -> str:
            return str(model)

    loaded: Any = Folder()
    assert Translator.load(loaded, engine="pytorch").translate(LINES)[0].text


@native
def test_a_full_disk_leads_to_the_pytorch_backend(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.decoding.native.pack.pack_weights", full_disk)
    translator = Translator.load(model)
    assert translator.description.startswith("PyTorch backend")
    assert str(model / "packed") in translator.description and "No space left" in translator.description
    assert "TMPDIR" in translator.description
    assert translator.translate(LINES)[0].text


@pytest.mark.parametrize("engine", [pytest.param("native", marks=native), "pytorch"])
@pytest.mark.parametrize("packed_before", [pytest.param(True, marks=native), False])
def test_a_tokenizer_of_another_size_is_refused(engine: Any, packed_before: bool, model: Path) -> None:
    """Its sha256 is in meta.json, so that only the sizes show that it is not the model's."""
    if packed_before:
        scores(model, engine="native")
    config = parse_config(json.loads((model / "config.json").read_text()))
    small = config.tokenizer.model_copy(update={"vocab_size": 40})
    tokenizer = learn_tokenizer(small, [line for line in LINES for _ in range(20)])
    assert tokenizer.target_size < 56
    for name, content in tokenizer.files().items():
        replace_file(model, name, content)

    with pytest.raises(ModelFolderError) as error:
        Translator.load(model, engine=engine)
    facts = (str(model), f"a vocabulary of {tokenizer.source_size} source and", "(56, 16)", "belongs to another model")
    assert all(fact in str(error.value) for fact in facts)


@native
def test_a_record_that_was_changed_with_the_tokenizer_is_refused_too(model: Path) -> None:
    """The packed file contains its vocabulary sizes."""
    scores(model, engine="native", quantize="int8")
    config = parse_config(json.loads((model / "config.json").read_text()))
    small = config.tokenizer.model_copy(update={"vocab_size": 40})
    tokenizer = learn_tokenizer(small, [line for line in LINES for _ in range(20)])
    for name, content in tokenizer.files().items():
        replace_file(model, name, content)
    record = model / "packed" / "int8.json"
    sizes = {"source_size": tokenizer.source_size, "target_size": tokenizer.target_size}
    record.write_text(json.dumps(json.loads(record.read_text()) | sizes))

    with pytest.raises(ModelFolderError, match="a vocabulary of"):
        Translator.load(model, engine="native", quantize="int8")
