"""P9: models in the format of CTranslate2 compute what CTranslate2 computes; export and import is the identity."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece as spm
import torch

from ctranslate2_folders import FOLDERS, foreign_folder
from dragoman.config import parse_config
from dragoman.decoding.search_types import before_end
from dragoman.formats.export import export
from dragoman.formats.importing.ctranslate2 import reference_runtime
from dragoman.formats.importing.ctranslate2_files import CTranslate2Checkpoint
from dragoman.formats.importing.importer import _plan, import_model, opened
from dragoman.formats.parity import ParityCase
from dragoman.models.model_folder import build_for, load_network, read_config, save_model, unique_tensors
from dragoman.tokenizers import BOS, EOS, Tokenizer
from every_kind import TRANSFORMERS
from imported_checks import loaded, refusal, set_values
from marian_files import LINES
from small_run import digit_pairs, small_document, write_lines
from tiny_translator import tiny_tokenizer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None,
    reason="needs the package ctranslate2: pip install 'dragoman[formats]'",
)

EXPORTED = (
    "paper", "pre-norm", "modern", "multi-query", "grouped-query", "wide values", "t5 family", "no positions",
    "learned", "shaw", "t5", "normalized embeddings", "normalized embeddings pre-norm", "output bias", "unscaled",
)  # fmt: skip


def written(folder: Path, name: str) -> Path:
    """A model folder with random weights."""
    document = small_document(folder / "data")
    layers: dict[str, Any] = {"d_model": 12, "d_ff": 20, "n_heads": 2, "encoder_layers": 2, "decoder_layers": 3}
    document["model"] = {"architecture": "transformer", **layers, **TRANSFORMERS[name]}
    position = document["model"].get("position", {})
    if position.get("kind") == "learned":
        position = {"kind": "learned", "max_len": 260}
    document["model"]["position"] = position | ({"fraction": 2 / 3} if "fraction" in position else {})
    if not position:
        del document["model"]["position"]
    config, tokenizer = parse_config(document), tiny_tokenizer()
    torch.manual_seed(5)
    tensors = {
        key: tensor + 0.1 * torch.randn_like(tensor)
        for key, tensor in unique_tensors(build_for(config, tokenizer)).items()
    }
    save_model(folder / "model", config, tokenizer, tensors, {"step": 0})
    return folder / "model"


@pytest.mark.parametrize("name", EXPORTED)
def test_export_and_import_is_the_identity(name: str, tmp_path: Path) -> None:
    origin = written(tmp_path, name)
    check = write_lines(tmp_path / "lines.txt", [source for source, _ in digit_pairs(3, seed=8)])
    export(origin, tmp_path / "exported", check=check)
    done = import_model(tmp_path / "exported", tmp_path / "imported", check)
    assert done.family == "ctranslate2" and done.parity.met
    (ours, _, config), (before, tokenizer, expected) = load_network(done.folder), load_network(origin)
    found, wanted = unique_tensors(ours), unique_tensors(before)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert config.model.model_dump() == expected.model.model_copy(update={"dropout": 0.0}).model_dump()
    assert isinstance(tokenizer, Tokenizer)
    assert {each.name for each in done.folder.iterdir()} >= tokenizer.files().keys()
    for file, content in tokenizer.files().items():
        assert (done.folder / file).read_bytes() == content


@pytest.fixture(scope="module", params=FOLDERS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a model, and what was imported from it."""
    folder = tmp_path_factory.mktemp("ctranslate2")
    source = foreign_folder(folder / "source", request.param)
    done = import_model(source, folder / "model", write_lines(folder / "lines.txt", LINES))
    assert done.parity.met and done.parity.greedy.same == len(LINES) and done.tokenizer and done.tokenizer.met
    return source, done.folder


def test_probabilities_are_those_of_ctranslate2(imported: tuple[Path, Path]) -> None:
    checkpoint = opened(imported[0])
    assert isinstance(checkpoint, CTranslate2Checkpoint)
    plan = _plan(checkpoint)[1]
    runtime = reference_runtime(checkpoint, plan)
    network, tokenizer = loaded(imported[1])
    rng = np.random.default_rng(3)
    for line in LINES:
        source = tokenizer.encode_source(line)
        target = [*rng.choice(range(4, tokenizer.target_size), 9).tolist(), EOS]
        with torch.no_grad():
            logits = network(torch.tensor([source]), None, torch.tensor([[BOS, *target[:-1]]]))[0]
        ours = logits.log_softmax(-1)[range(10), target].numpy()
        assert np.abs(ours - runtime.score(ParityCase(source, []), target)).max() < 2e-5


def test_ids_are_those_of_the_lists(imported: tuple[Path, Path]) -> None:
    tokenizer = load_network(imported[1])[1]
    assert isinstance(tokenizer, Tokenizer)
    model = next(path for path in imported[0].iterdir() if path.name in ("source.spm", "sentencepiece.model"))
    pieces = spm.SentencePieceProcessor(model_file=str(model)).encode(LINES[0], out_type=str)
    assert [tokenizer.source_piece(i) for i in before_end(tokenizer.encode_source(LINES[0]))] == pieces
    assert tokenizer.sources_end is json.loads((imported[0] / "config.json").read_text())["add_source_eos"]


def test_models_of_sentences_split_lines(imported: tuple[Path, Path], request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["imported"]
    assert read_config(imported[1]).search.split_sentences == ("auto" if name == "odd" else "on")


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return foreign_folder(tmp_path_factory.mktemp("ctranslate2") / "source", "marian")


@pytest.fixture
def damaged(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(original, tmp_path / "checkpoint"))


def test_every_reason_is_in_one_message(damaged: Path) -> None:
    set_values(damaged, add_source_eos=None, add_source_bos=True, layer_norm_epsilon="small")
    (damaged / "sentencepiece.model").unlink()
    (damaged / "model.bin").write_bytes(
        (damaged / "model.bin").read_bytes().replace(b"encoder/num_heads\0", b"encoder/num_hoods\0")
    )
    message = refusal(damaged)
    for reason in (
        "add_source_eos = None of config.json; accepted: True, False", "add_source_bos = True",
        "layer_norm_epsilon = 'small'", "the sentencepiece model is not known (*.model, *.spm: none)",
        "encoder/num_hoods = 3; accepted: models without this setting", "num_heads of encoder and decoder = None, 3",
    ):  # fmt: skip
        assert reason in message


def _shorten(folder: Path) -> None:
    (folder / "model.bin").write_bytes((folder / "model.bin").read_bytes()[:-9000])


def _list(folder: Path, change: Any) -> None:
    tokens = json.loads((folder / "shared_vocabulary.json").read_text())
    (folder / "shared_vocabulary.json").write_text(json.dumps(change(tokens)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_shorten, "model.bin: not a model file of CTranslate2, or damaged: truncated"),
        (lambda folder: (folder / "model.bin").write_bytes(b"\7\0\0\0"), "version 7; accepted: 4, 5, 6"),
        (lambda folder: _list(folder, lambda tokens: tokens[:-1]), "the settings and the vocabulary require (48, 12)"),
        (lambda folder: _list(folder, lambda tokens: {"a": 1}), "not a list of texts in JSON"),
        (lambda folder: _list(folder, lambda tokens: [*tokens[:-1], tokens[0]]), "the same token twice"),
        (lambda folder: set_values(folder, unk_token="?"), "no token '?', the unk_token of config.json"),
        (lambda folder: set_values(folder, decoder_start_token=None), "decoder_start_token = None of config.json"),
        (lambda folder: set_values(folder, unk_token={}), "unk_token = {} of config.json; accepted: a token of"),
        (lambda folder: (folder / "shared_vocabulary.json").rename(folder / "source_vocabulary.json"), "no vocabulary"),
        (lambda folder: (folder / "sentencepiece.model").write_bytes(b"x"), "cannot be read by sentencepiece"),
        (lambda folder: _list(folder, lambda t: t[:4] + [f"w{each}" for each in t[4:]]), "only 0 of 46 tokens"),
    ],
)  # fmt: skip
def test_damaged_folders(change: Any, reason: str, damaged: Path) -> None:
    change(damaged)
    assert reason in refusal(damaged)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"storage": "int8"}, "quantized weights ("),
        ({"activation": "Tanh"}, "encoder/activation = 5; accepted: 0, 1, 2, 3, 6"),
    ],
)
def test_unsupported_models(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    assert reason in refusal(foreign_folder(tmp_path / "source", "marian", **changes))
