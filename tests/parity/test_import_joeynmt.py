"""P9: checkpoints of JoeyNMT compute what its definition computes, and what JoeyNMT computes if it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sentencepiece as spm
import torch

from damaged_checkpoints import refusal
from dragoman import Translator
from dragoman.formats.importing import joeynmt
from dragoman.formats.importing.importer import _plan, opened
from dragoman.formats.importing.listed_vocabulary import restricted
from dragoman.formats.importing.numpy_reference import SearchedModel
from dragoman.formats.importing.toolkit_files import JoeyCheckpoint
from dragoman.models.model_folder import load_network
from dragoman.tokenizers import EOS, Tokenizer
from every_kind import covering
from imported_checks import cases, imported_toolkit, logits
from importing_attacks import ATTACKS
from marian_files import vocabulary
from toolkit_checkpoints import JOEY, LINES, joey_checkpoint, joey_settings


@pytest.fixture(scope="module", params=covering(JOEY, {"pre"}))
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """Name, the folder of a model, and what was imported from it."""
    folder = tmp_path_factory.mktemp("joeynmt")
    source = joey_checkpoint(folder / "source", request.param)
    return request.param, source, imported_toolkit(source, "joeynmt", LINES)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_logits_are_those_of_the_definition(imported: tuple[str, Path, Path], dtype: str, tolerance: float) -> None:
    _, folder, model = imported
    checkpoint = opened(folder)
    assert isinstance(checkpoint, JoeyCheckpoint)
    plan = _plan(checkpoint)[1]
    own = joeynmt.definition(checkpoint, np.dtype(dtype).type)
    runtime = SearchedModel(own, "", (plan.vocabulary.source, plan.vocabulary.target), plan.vocabulary.target[EOS])
    tokenizer = plan.vocabulary.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    for source, target in cases(tokenizer, LINES):
        ours = logits(model, getattr(torch, dtype), source, target)
        theirs = runtime.logits(source, target)[:, plan.vocabulary.target]
        assert np.abs(ours - theirs).max() < tolerance


def test_it_translates_and_keeps_the_search(imported: tuple[str, Path, Path]) -> None:
    translator = Translator.load(imported[2], engine="pytorch", quantize="none")
    assert len([each.text for each in translator.translate(LINES[:2])]) == 2
    config = load_network(imported[2])[2]
    assert (config.search.beam, config.search.alpha) == (3, 0.6)
    assert (config.parallel.source_language, config.parallel.target_language) == ("en", "de")


@pytest.mark.parametrize("dropped", [0, 3, 20])
def test_sentencepiece_uses_only_listed_pieces(dropped: int) -> None:
    model = spm.SentencePieceProcessor(model_proto=vocabulary(60))
    pieces = [str(model.id_to_piece(i)) for i in range(model.get_piece_size())]
    kept = pieces[:2] + sorted(pieces[2:])[dropped:]
    cut = spm.SentencePieceProcessor(model_proto=restricted(vocabulary(60), kept))
    found = [cut.encode(line, out_type=str) for line in LINES]
    if dropped == 0:
        assert found == [model.encode(line, out_type=str) for line in LINES]
    assert all(piece in kept or piece not in pieces or len(piece) == 1 for row in found for piece in row)
    assert [cut.decode(row) for row in found] == [model.decode(model.encode(line, out_type=str)) for line in LINES]
    if hasattr(model, "SetVocabulary"):
        model.SetVocabulary(kept)
        assert found == [model.encode(line, out_type=str) for line in LINES]


def test_logits_and_ids_are_those_of_joeynmt(imported: tuple[str, Path, Path]) -> None:
    library = pytest.importorskip("joeynmt.model", reason="needs: pip install joeynmt")
    vocabularies, tokenizers = (__import__(f"joeynmt.{name}", fromlist=[name]) for name in ("vocabulary", "tokenizers"))
    name, folder, model = imported
    settings = json.loads((folder / "config.yaml").read_text())
    special = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None, unk_id=0, pad_id=1,
        bos_id=2, eos_id=3, sep_id=4, lang_tags=[],
    )  # fmt: skip
    lists = [(folder / f"{side}_vocab.txt").read_text().split("\n")[:-1] for side in ("src", "trg")]
    sides = [vocabularies.Vocabulary(tokens[4:], special) for tokens in lists]
    theirs = library.build_model(settings["model"], *sides).eval()
    state = torch.load(folder / "best.ckpt")["model_state"]
    tables = {key: value for key, value in theirs.state_dict().items() if key.endswith(".pe")}
    theirs.load_state_dict(state | tables)  # all names and shapes
    checkpoint = opened(folder)
    plan = _plan(checkpoint)[1]
    tokenizer = plan.vocabulary.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    own = JOEY[name].get("two")
    cut = tokenizers.SentencePieceTokenizer(model_file=str(folder / ("sp.src.model" if own else "sp.model")))
    restricts = hasattr(cut.spm, "SetVocabulary")  # not in sentencepiece 0.2.3
    if restricts:
        cut.set_vocab(sides[0])
    for line, (source, target) in zip(LINES, cases(tokenizer, LINES), strict=True):
        ids = [plan.vocabulary.source[token] for token in source]
        assert not restricts or ids == [sides[0].lookup(piece) for piece in cut(line)] + [3]
        prefix = torch.tensor([[2, *(plan.vocabulary.target[token] for token in target)]])
        mask = torch.ones(1, 1, len(ids), dtype=torch.bool)
        with torch.no_grad():
            memory, _ = theirs.encoder(theirs.src_embed(torch.tensor([ids])), None, mask)
            expected = theirs.decoder(
                trg_embed=theirs.trg_embed(prefix), encoder_output=memory, encoder_hidden=None, src_mask=mask,
                unroll_steps=0, hidden=None, trg_mask=torch.ones(1, 1, prefix.size(1), dtype=torch.bool),
            )[0][0]  # fmt: skip
        ours = logits(model, torch.float32, source, target)
        assert np.abs(ours - expected.numpy()[:, plan.vocabulary.target]).max() < 1e-5


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    return joey_checkpoint(tmp_path / "checkpoint", "post")


def change_settings(folder: Path, path: str, value: Any) -> None:
    settings = json.loads((folder / "config.yaml").read_text())
    *parts, last = path.split(".")
    own = settings
    for part in parts:
        own = own.setdefault(part, {})
    own[last] = value
    (folder / "config.yaml").write_text(json.dumps(settings))


def test_every_reason_is_in_one_message(damaged: Path) -> None:
    for path, value in {
        "model.encoder.type": "recurrent", "model.decoder.activation": "tanh", "model.encoder.alpha": 0.7,
        "data.src.lowercase": True, "data.trg.tokenizer_type": "subword-nmt", "model.encoder.num_layers": "many",
        "data.src.tokenizer_cfg.pretokenizer": "moses", "data.special_symbols.lang_tags": ["<de>"],
    }.items():  # fmt: skip
        change_settings(damaged, path, value)
    (damaged / "sp.model").unlink()
    (damaged / "best.ckpt").write_bytes((damaged / "best.ckpt").read_bytes()[:-900])
    message = refusal(damaged)
    for reason in (
        "model.encoder.type = 'recurrent'; accepted: 'transformer'", "model.decoder.activation = 'tanh'; accepted",
        "model.encoder.alpha = 0.7", "data.src.lowercase = True; accepted: False",
        "data.trg.tokenizer_type = 'subword-nmt'; accepted: 'sentencepiece'",
        "model.encoder.num_layers = 'many'; accepted: an integer", "pretokenizer = 'moses'; accepted: 'none'",
        "lang_tags = ['<de>']; accepted: models of one direction", "the sentencepiece model is not known",
        "not in PyTorch's zip format, or truncated",
    ):  # fmt: skip
        assert reason in message


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("model.decoder.num_layers", 3, "missing tensors: decoder.layers.2."),
        ("model.encoder.num_layers", 0, "num_layers = 0; accepted: an integer, at least 1"),
        ("model.decoder.ff_size", 9, "model.encoder.ff_size = 7, model.decoder.ff_size = 9; accepted: equal"),
        ("model.tied_softmax", False, "missing tensors"),
        ("data.special_symbols.pad_id", 7, "ids of pad, unk, bos, eos = [7, 0, 2, 3]; accepted: 0 to 3"),
        ("model.encoder.num_heads", 5, "num_heads"),
    ],
)
def test_wrong_settings(path: str, value: Any, reason: str, damaged: Path) -> None:
    if "tied" in path:
        settings = joey_settings("untied")
        (damaged / "config.yaml").write_text(json.dumps(settings))
    else:
        change_settings(damaged, path, value)
    assert reason in refusal(damaged)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "src_vocab.txt").write_text("<unk>\na\nb\n"), "src_vocab.txt and trg_vocab.txt"),
        (lambda folder: (folder / "trg_vocab.txt").unlink(), "trg_vocab.txt: missing"),
        (lambda folder: (folder / "sp.model").write_bytes(b"\x80\x04K\x01."), "cannot be read by sentencepiece"),
        (lambda folder: (folder / "config.yaml").write_text("a: !!python/name:os.mkdir"), "not valid YAML"),
        (lambda folder: torch.save({"state": 1}, folder / "best.ckpt"), "no 'model_state', the weights"),
    ],
)  # fmt: skip
def test_damaged_folders(change: Any, reason: str, damaged: Path) -> None:
    change(damaged)
    assert reason in refusal(damaged)


def test_a_shorter_vocabulary_is_refused(damaged: Path) -> None:
    for side in ("src", "trg"):
        lines = (damaged / f"{side}_vocab.txt").read_text().split("\n")
        (damaged / f"{side}_vocab.txt").write_text("\n".join(lines[:-3]) + "\n")
    assert "the settings and the vocabulary require" in refusal(damaged)


def test_an_attack_beside_the_weights_does_not_execute(tmp_path: Path) -> None:
    target = tmp_path / "executed"
    attack = ATTACKS["mkdir"](target)
    folder = joey_checkpoint(tmp_path / "checkpoint", "post", beside=attack.payload)
    assert "it contains an object of posix.mkdir, which could run code" in refusal(folder)
    assert not target.exists()
    torch.load(folder / "best.ckpt", weights_only=False)
    assert target.exists()


def test_several_checkpoints_are_named(damaged: Path) -> None:
    (damaged / "best.ckpt").rename(damaged / "200.ckpt")
    message = refusal(damaged)
    assert "several models; import one of these files" in message and "200.ckpt" in message
    assert isinstance(opened(damaged / "200.ckpt"), JoeyCheckpoint)
