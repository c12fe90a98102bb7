"""P9: checkpoints of fairseq compute what its definition computes, and what fairseq computes if it is installed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from damaged_checkpoints import refusal
from dragoman import Translator
from dragoman.formats.importing import fairseq
from dragoman.formats.importing.importer import _plan, opened
from dragoman.formats.importing.numpy_reference import SearchedModel
from dragoman.formats.importing.toolkit_files import FairseqCheckpoint
from dragoman.models.model_folder import load_network
from dragoman.tokenizers import BOS, EOS, PAD, Tokenizer
from every_kind import covering
from imported_checks import cases, imported_toolkit, logits
from importing_attacks import ATTACKS
from toolkit_checkpoints import FAIRSEQ, LINES, fairseq_checkpoint, fairseq_options


@pytest.fixture(scope="module", params=covering(FAIRSEQ, {"learned"}))
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """Name, the folder of a model, and what was imported from it."""
    folder = tmp_path_factory.mktemp("fairseq")
    source = fairseq_checkpoint(folder / "source", request.param)
    return request.param, source, imported_toolkit(source, "fairseq", LINES)


# The float32 sinusoids of fairseq differ from float64 ones, with which the definition computes.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_logits_are_those_of_the_definition(imported: tuple[str, Path, Path], dtype: str, tolerance: float) -> None:
    name, folder, model = imported
    checkpoint = opened(folder)
    assert isinstance(checkpoint, FairseqCheckpoint)
    vocabulary = _plan(checkpoint)[1].vocabulary
    own = fairseq.definition(checkpoint, np.dtype(dtype).type)
    runtime = SearchedModel(own, "", (vocabulary.source, vocabulary.target), vocabulary.target[EOS])
    tokenizer = vocabulary.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    kept = [token for token in range(tokenizer.target_size) if token not in (PAD, BOS)]
    for source, target in cases(tokenizer, LINES):
        ours = logits(model, getattr(torch, dtype), source, target)
        theirs = runtime.logits(source, target)[:, [vocabulary.target[token] for token in kept]]
        assert np.abs(ours[:, kept] - theirs).max() < (tolerance if FAIRSEQ[name].get("learned_pos") else 1e-5)
        assert np.abs(ours[:, EOS] - 100 - ours[:, BOS]).max() < 1e-4  # a copy of the end


def test_it_translates(imported: tuple[str, Path, Path]) -> None:
    translator = Translator.load(imported[2], engine="pytorch", quantize="none")
    assert len([each.text for each in translator.translate(LINES[:2])]) == 2
    config = load_network(imported[2])[2]
    assert (config.parallel.source_language, config.parallel.target_language) == ("de", "en")


def test_logits_are_those_of_fairseq(imported: tuple[str, Path, Path]) -> None:
    library = pytest.importorskip("fairseq.models.transformer", reason="needs: pip install fairseq")
    from fairseq.data import Dictionary

    name, folder, model = imported
    sides = [Dictionary.load(str(folder / f"dict.{code}.txt")) for code in ("de", "en")]
    task = argparse.Namespace(source_dictionary=sides[0], target_dictionary=sides[1])
    theirs = library.TransformerModel.build_model(argparse.Namespace(**fairseq_options(name)), task).eval()
    theirs.load_state_dict(torch.load(folder / "checkpoint_best.pt", weights_only=False)["model"])
    for layer in theirs.encoder.layers:
        layer.can_use_fastpath = False  # of PyTorch, for padded batches
    vocabulary = _plan(opened(folder))[1].vocabulary
    tokenizer = vocabulary.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    kept = [token for token in range(tokenizer.target_size) if token not in (PAD, BOS)]
    for source, target in cases(tokenizer, LINES):
        ids = torch.tensor([[vocabulary.source[token] for token in source]])
        prefix = torch.tensor([[2, *(vocabulary.target[token] for token in target)]])
        with torch.no_grad():
            expected = theirs(ids, torch.tensor([ids.size(1)]), prefix)[0][0].numpy()
        ours = logits(model, torch.float32, source, target)
        assert np.abs(ours[:, kept] - expected[:, [vocabulary.target[token] for token in kept]]).max() < 1e-5


def test_ids_are_those_of_the_dictionaries(imported: tuple[str, Path, Path]) -> None:
    checkpoint = opened(imported[1])
    assert isinstance(checkpoint, FairseqCheckpoint)
    source = fairseq.token_lists(checkpoint)[0]
    assert list(source.tokens[:4]) == ["<s>", "<pad>", "</s>", "<unk>"] and source.tokens[-1] == "madeupword0000"
    tokenizer = load_network(imported[2])[1]
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.source_piece(source.order.index(9)) == source.tokens[9]


# ------------------------------------------------------------------------------------------------------------ refusals


def test_every_reason_is_in_one_message(tmp_path: Path) -> None:
    folder = fairseq_checkpoint(
        tmp_path / "checkpoint", "tied", activation_fn="tanh", arch="lightconv", encoder_layers="many",
        adaptive_softmax_cutoff=[100], decoder_normalize_before=True, bpe="subword_nmt", tokenizer="moses",
    )  # fmt: skip
    (folder / "sentencepiece.bpe.model").unlink()
    message = refusal(folder)
    for reason in (
        "activation_fn = 'tanh'; accepted: 'relu'", "arch = 'lightconv'; accepted: 'transformer'",
        "encoder_layers = 'many'; accepted: an integer", "adaptive_softmax_cutoff = [100]; accepted: False",
        "encoder_normalize_before = False, decoder_normalize_before = True", "bpe = 'subword_nmt'; accepted: None",
        "tokenizer = 'moses'; accepted: None", "the sentencepiece model is not known",
    ):  # fmt: skip
        assert reason in message


def _shorten(folder: Path) -> None:
    for path in folder.glob("dict.*.txt"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))


def _truncate(folder: Path) -> None:
    (folder / "checkpoint_best.pt").write_bytes((folder / "checkpoint_best.pt").read_bytes()[:-2000])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_shorten, "the settings and the vocabulary require"),
        (_truncate, "not in PyTorch's zip format, or truncated"),
        (lambda folder: (folder / "dict.en.txt").unlink(), "dict.en.txt: missing"),
        (lambda folder: (folder / "dict.en.txt").write_text("a\n"), "dict.en.txt, line 1: 'a'; accepted: a token and"),
        (lambda folder: (folder / "dict.en.txt").write_text("a 1\na 2\n"), "dict.en.txt: the same token twice"),
        (lambda folder: (folder / "sentencepiece.bpe.model").write_bytes(b"x"), "cannot be read by sentencepiece"),
        (lambda folder: torch.save({"model": {}}, folder / "checkpoint_best.pt"), "no options ('args' or 'cfg')"),
        (lambda folder: torch.save([1], folder / "checkpoint_best.pt"), "no options ('args' or 'cfg')"),
    ],
)
def test_damaged_folders(change: Callable[[Path], Any], reason: str, tmp_path: Path) -> None:
    folder = fairseq_checkpoint(tmp_path / "checkpoint", "tied")
    change(folder)
    assert reason in refusal(folder)


@pytest.mark.parametrize(("foreign", "refused"), [(2, False), (3, True)])
def test_a_model_with_fewer_than_half_of_the_dictionary_is_refused(foreign: int, refused: bool, tmp_path: Path) -> None:
    folder = fairseq_checkpoint(tmp_path / "checkpoint", "tied")
    for code in ("de", "en"):
        lines = (folder / f"dict.{code}.txt").read_text().splitlines()[:3]
        lines += [f"foreign{i} 1" for i in range(foreign)]
        (folder / f"dict.{code}.txt").write_text("\n".join(lines) + "\n")
    problem = f"sentencepiece.bpe.model: only 3 of {4 + foreign} tokens of dict.de.txt are its pieces"
    assert (problem in refusal(folder)) == refused  # `<s>` counts; the accepted one has too few tokens for the weights


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"decoder_layers": 3}, "missing tensors: decoder.layers.2."),
        ({"encoder_layers": 0}, "encoder_layers = 0; accepted: an integer, at least 1"),
        ({"share_all_embeddings": False, "share_decoder_input_output_embed": False, "encoder_embed_dim": 24}, "24"),
        ({"decoder_output_dim": 24}, "decoder_output_dim = 24; accepted: that of the decoder, 12"),
    ],
)
def test_wrong_settings(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    assert reason in refusal(fairseq_checkpoint(tmp_path / "checkpoint", "tied", **changes))


def test_a_layout_without_the_last_norm_is_refused(tmp_path: Path) -> None:
    message = refusal(fairseq_checkpoint(tmp_path / "checkpoint", "learned", version=2))
    assert "decoder.version = 2: pre-norm without a norm after the last layer; accepted: 3" in message


def test_an_attack_beside_the_weights_does_not_execute(tmp_path: Path) -> None:
    target = tmp_path / "executed"
    folder = fairseq_checkpoint(tmp_path / "checkpoint", "tied", beside=ATTACKS["system"](target).payload)
    assert "it contains an object of posix.system, which could run code" in refusal(folder)
    assert not target.exists()
    torch.load(folder / "checkpoint_best.pt", weights_only=False)
    assert target.exists()
