"""P4: files of earlier versions load and give the same results; golden files of every format version.

Those of imports are written by `tests/golden/write_families.py`; the others were written, once and for all, by
`tests/golden/write_golden.py` of commit e9fecdb9.  No outcome depends on the processor: numbers are compared with a
tolerance, and tokens only where the best one leads by half a nat.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dragoman.config import EncoderOnlyConfig, load_config
from dragoman.data.dialogues import Turn, encode_turns
from dragoman.data.store.folder import DamagedStoreError
from dragoman.data.store.reader import Store
from dragoman.decoding.shortlist import SHORTLIST, Shortlist
from dragoman.io.run_log import Reporter, read_log
from dragoman.io.weights import load_file
from dragoman.models.model_folder import FORMAT_VERSION, list_checkpoints, load_network, read_meta, read_pointer, verify
from dragoman.models.seq2seq import Network
from dragoman.pipelines.generation import Chat, TextGenerator
from dragoman.pipelines.labelling import Labeller
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import BOS, EOS, LabelVocabulary, Tokenizer
from dragoman.training.tasks.translation import TranslationTask
from dragoman.training.trainer import train
from small_run import Listener

HERE = Path(__file__).parents[1] / "golden"
VERSIONS = range(1, FORMAT_VERSION + 1)
TOLERANCE = 5e-4  # numbers are recorded with four digits


def expected(name: str) -> Any:
    return json.loads((HERE / name).read_bytes())


def logits_of(network: Network, source: list[int], target: list[int]) -> NDArray[np.float32]:
    """Logits (T, V) of a target under teacher forcing."""
    with torch.no_grad():
        rows = network.output(network.hidden(torch.tensor([source]), None, torch.tensor([[BOS, *target[:-1]]])))
    found: NDArray[np.float32] = rows[0].numpy()
    return found


def check_logits(network: Network, source: list[int], target: list[int], row: dict[str, Any]) -> None:
    found = logits_of(network, source, target)
    assert found == pytest.approx(np.array(row["logits"]), abs=TOLERANCE)
    assert sum(best is not None for best in row["best"]) >= 1
    for best, step in zip(row["best"], found, strict=True):
        assert best is None or int(step.argmax()) == best


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_model(version: int) -> None:
    folder = HERE / f"model_v{version}"
    assert verify(folder)["format_version"] == version
    answers = expected(f"expected_v{version}.json")
    translator = Translator.load(folder, engine="pytorch")
    rows = answers["translations"]
    found = translator.translate([row["source"] for row in rows], beam=3)
    assert any(row["text"] for row in rows)
    for row, translation in zip(rows, found, strict=True):
        assert (translation.text, translation.tokens) == (row["text"], row["tokens"])
        assert translation.score == pytest.approx(row["score"], abs=1e-4)
    scores = translator.score(["one two", "nine"], ["deux un", "neuf"])
    assert [s.log_prob for s in scores] == pytest.approx(answers["scores"], abs=1e-4)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["lstm", "every_step", "ssru"])
def test_golden_recurrent_model(name: str, version: int) -> None:
    folder = HERE / f"{name}_v{version}"
    assert verify(folder)["format_version"] == version
    network, _, config = load_network(folder)
    assert config.model.architecture == ("transformer" if name == "ssru" else "lstm")
    assert getattr(config.model, "decoder_self", "") == ("ssru" if name == "ssru" else "")
    assert (getattr(config.model.attention, "context", ""), config.tokenizer.sides[1].kind) == (
        ("every_step", "char") if name == "every_step" else ("", "bpe")
    )
    translator = Translator.load(folder, engine="pytorch")
    for row in expected(f"expected_{name}_v{version}.json"):
        source, target = row["ids"]
        tokenizer = translator.tokenizer
        assert [tokenizer.encode_source(row["pair"][0]), tokenizer.encode_target(row["pair"][1])] == [source, target]
        check_logits(network, source, target, row)
        (score,) = translator.score([row["pair"][0]], [row["pair"][1]])
        log_probs = torch.tensor(row["logits"]).log_softmax(1)[range(len(target)), target]
        assert score.token_log_probs == pytest.approx(log_probs.tolist(), abs=2 * TOLERANCE)


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_imported_model(version: int) -> None:
    folder = HERE / f"imported_v{version}"
    assert verify(folder)["imported"] == "marian"
    network, tokenizer, config = load_network(folder)
    assert isinstance(tokenizer, Tokenizer) and tokenizer.encode_source(">>fra<< a") != tokenizer.encode_source("a")
    assert config.model.architecture == "transformer" and config.model.output_bias
    for row in expected(f"expected_imported_v{version}.json"):
        source, target = row["ids"]
        assert [tokenizer.encode_source(row["pair"][0]), tokenizer.encode_target(row["pair"][1])] == [source, target]
        check_logits(network, source, target, row)


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_imported_bert(version: int) -> None:
    pytest.importorskip("tokenizers")
    folder = HERE / f"bert_v{version}"
    assert verify(folder)["imported"] == "bert"
    network, tokenizer, config = load_network(folder)
    assert isinstance(tokenizer, Tokenizer) and isinstance(config.model, EncoderOnlyConfig)
    assert config.model.head == "transform" and config.model.normalize_embeddings
    rows = expected(f"expected_bert_v{version}.json")
    for row in rows:
        before, after = (tokenizer.encode_source(text)[:-1] for text in row["text"])
        assert tokenizer.masked_source([*before, tokenizer.mask, *after, EOS]) == row["ids"]
        assert logits_of(network, row["ids"], [0]) == pytest.approx(np.array(row["logits"]), abs=TOLERANCE)
    assert len(rows) == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_imported_vit(version: int) -> None:
    folder = HERE / f"vit_v{version}"
    assert verify(folder)["imported"] == "vit"
    labels = Labeller.load(folder).label(np.arange(3 * 81).reshape(3, 9, 9).astype(np.uint8))
    answers = expected(f"expected_vit_v{version}.json")
    assert [list(each.labels) for each in labels] == [row["labels"] for row in answers] and len(answers) == 3
    for each, row in zip(labels, answers, strict=True):
        assert each.probabilities == pytest.approx(row["probabilities"], abs=TOLERANCE)


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_tokenizer_of_hugging_face(version: int) -> None:
    pytest.importorskip("tokenizers")
    folder = HERE / f"llama_v{version}"
    assert verify(folder)["imported"] == "llama"
    network, tokenizer, config = load_network(folder)
    assert isinstance(tokenizer, Tokenizer) and config.model.architecture == "decoder_only"
    for row in expected(f"expected_llama_v{version}.json"):
        assert tokenizer.encode_target(row["text"]) == row["ids"]
        check_logits(network, [], row["ids"], row)


FAMILIES = sorted(
    (version, path.name) for version in VERSIONS for path in (HERE / f"families_v{version}").iterdir() if path.is_dir()
)


def imported_from(version: int, name: str) -> str:
    """The family of an imported model; skips if its tokenizer needs a package that is missing."""
    folder = HERE / f"families_v{version}" / name
    if (folder / "tokenizer.json").exists():
        pytest.importorskip("tokenizers")
    return str(verify(folder)["imported"])


@pytest.mark.parametrize(("version", "name"), FAMILIES)
def test_golden_families_of_imports(version: int, name: str) -> None:
    folder = HERE / f"families_v{version}" / name
    assert imported_from(version, name) == json.loads((folder / "import.json").read_bytes())["family"]
    rows = expected(f"families_v{version}/expected_{name}.json")
    assert len(rows) == 2
    if (folder / "labels.json").exists():
        for labelled, row in zip(Labeller.load(folder).label([row["text"] for row in rows]), rows, strict=True):
            assert list(labelled.labels) == row["labels"]
            assert labelled.probabilities == pytest.approx(row["probabilities"], abs=TOLERANCE)
        return
    network, tokenizer, _ = load_network(folder)
    assert isinstance(tokenizer, Tokenizer)
    for row in rows:
        bound = tokenizer.between(*row["languages"])
        source, target = row["ids"]
        found = bound.encode_source(row["pair"][0]) if row["pair"][0] else [], bound.encode_target(row["pair"][1])
        assert list(found) == [source, target]
        logits = torch.from_numpy(logits_of(network, source, target))
        picked = logits.log_softmax(1)[range(len(target)), target]
        assert picked.numpy() == pytest.approx(np.array(row["log_probs"]), abs=2 * TOLERANCE)
        for best, step in zip(row["best"], logits, strict=True):
            assert best is None or int(step.argmax()) == best


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_files_of_every_family(version: int) -> None:
    importer = pytest.importorskip("dragoman.formats.importing.importer")
    others = [f"{name}_v{version}" for name in ("imported", "bert", "vit", "llama")]
    folders = [*(f"families_v{version}/{name}" for v, name in FAMILIES if v == version), *others]
    found = {read_meta(HERE / folder)["imported"] for folder in folders}
    assert found == {*importer.FAMILIES, *(name for name, _ in importer._FORMATS.values())}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "architecture"), [("language", "decoder_only"), ("recurrent_lm", "recurrent_lm")])
def test_golden_language_model(name: str, architecture: str, version: int) -> None:
    folder = HERE / f"{name}_v{version}"
    assert verify(folder)["format_version"] == version
    network, _, config = load_network(folder)
    assert config.model.architecture == architecture
    generator = TextGenerator.load(folder, engine="pytorch")
    checked = 0
    for row in expected(f"expected_{name}_v{version}.json"):
        assert generator.tokenizer.encode_target(row["text"]) == row["ids"]
        check_logits(network, [], row["ids"], row)
        (found,) = generator.score([row["text"]])
        assert (found.log_prob, found.tokens) == (pytest.approx(row["log_prob"], abs=1e-3), row["tokens"])
        checked += 1
    assert checked == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_tagger(version: int) -> None:
    folder = HERE / f"tagger_v{version}"
    assert verify(folder)["format_version"] == version
    network, vocabulary, config = load_network(folder)
    assert config.model.architecture == "recurrent_encoder" and config.model.initial_state.kind == "learned"
    assert isinstance(vocabulary, LabelVocabulary) and vocabulary.labels == ("END", "EVEN", "ODD")
    initial = [tensor for name, tensor in network.state_dict().items() if ".initial." in name]
    assert len(initial) == 4 and all(bool(tensor.any()) for tensor in initial), "h and c of each direction, learned"
    rows = expected(f"expected_tagger_v{version}.json")
    found = Labeller.load(folder).label([row["text"] for row in rows])
    assert sum(len(row["labels"]) for row in rows) > 9
    for row, labelled in zip(rows, found, strict=True):
        assert list(labelled.labels) == row["labels"]
        assert labelled.probabilities == pytest.approx(row["probabilities"], abs=TOLERANCE)


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_dialogue_model(version: int) -> None:
    """The roles of the tokenizer keep their ids, and each role its answers."""
    folder = HERE / f"dialogue_v{version}"
    assert verify(folder)["format_version"] == version
    chat = Chat.load(folder, engine="pytorch")
    assert chat.tokenizer.roles == {"A": 4, "B": 5, "C": 6}
    rows = expected(f"expected_dialogue_v{version}.json")
    assert {row["dialogue"][1][0] for row in rows} == {"B", "C"}
    for row in rows:
        prompt, (role, answer) = [tuple(turn) for turn in row["dialogue"]]
        turns = encode_turns(chat.tokenizer, [Turn(*prompt), Turn(role, answer)])
        assert [i for turn in turns for i in turn.inputs] == row["ids"]
        assert chat.reply([prompt], role, sample=False, max_tokens=20).text == answer
        for score, (log_prob, tokens) in zip(chat.score([[prompt, (role, answer)]])[0], row["scores"], strict=True):
            assert (score.log_prob, score.tokens) == (pytest.approx(log_prob, abs=1e-3), tokens)


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_shortlist(version: int, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(HERE / "model_v1", tmp_path / "model"))
    shutil.copy(HERE / f"shortlist_v{version}.bin", folder / SHORTLIST)
    answers = expected(f"expected_shortlist_v{version}.json")
    found = Shortlist.read(folder / SHORTLIST, read_meta(folder)["sha256"]["model.safetensors"])
    assert found.description == answers["about"]
    assert found.to_bytes() == (folder / SHORTLIST).read_bytes()
    translator = Translator.load(folder, engine="pytorch", shortlist=True)
    rows = answers["sources"]
    for row in rows:
        assert found.of(translator.tokenizer.encode_source(row["source"])) == row["words"]
    assert [t.text for t in translator.translate([row["source"] for row in rows], beam=1)] == [
        row["text"] for row in rows
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_store(version: int, tmp_path: Path) -> None:
    """Prepared data of an earlier format are not used but prepared again, with the same ids."""
    place = Path(shutil.copytree(HERE / f"run_v{version}", tmp_path / "place"))
    (folder,) = (place / "prepared").iterdir()
    answers = expected(f"run_v{version}/expected.json")
    with pytest.raises(DamagedStoreError, match="of another version"):
        Store(folder)
    config = load_config(place / "run" / "config.toml", [f"data.root={place / 'data'}"])
    store = TranslationTask(config, place / "prepared", Reporter(), None).store
    assert store.folder != folder and store.stats == answers["account"] and store.parts == [(60, 1.0)]
    for row in answers["pairs"]:
        assert [list(ids) for ids in store.pair(row["number"])] == row["ids"]
        assert list(store.text(row["number"])) == row["text"]


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_training_state_resumes_identically(version: int, tmp_path: Path) -> None:
    """The losses of the next three steps follow from the moments, the raw weights and the position in the data."""
    place = Path(shutil.copytree(HERE / f"run_v{version}", tmp_path / "place"))
    answers = expected(f"run_v{version}/expected.json")
    (checkpoint,) = list_checkpoints(place / "run")
    names = {key.partition("/")[0] for key in load_file(checkpoint / "training.safetensors")}
    assert names == {"step", "exp_avg", "exp_avg_sq", "raw"}
    listener = Listener()
    config = load_config(place / "run" / "config.toml", [f"data.root={place / 'data'}", "train.budget=9 steps"])
    train(config, place / "run", reporter=listener)
    assert "after step 6 " in listener.text and "damaged" not in listener.text
    rows = [row for row in read_log(place / "run") if row["step"] > 6]
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == [7, 8, 9]
    for row, answer in zip(steps, answers["steps"], strict=True):
        assert row["loss"] == pytest.approx(answer["loss"], abs=TOLERANCE), row["step"]
        assert row["learning_rate"] == pytest.approx(answer["learning_rate"], rel=1e-12)
    (scores,) = (row for row in rows if "valid_loss" in row)
    (answer,) = answers["scores"]
    assert (scores["step"], scores["epoch"]) == (answer["step"], answer["epoch"])
    assert scores["valid_loss"] == pytest.approx(answer["valid_loss"], abs=TOLERANCE)
    last = read_pointer(place / "run", "last")
    assert last is not None and verify(last)["step"] == 9


def test_golden_files_are_small() -> None:
    entries = [path for path in HERE.iterdir() if not path.name.startswith("families_v")]
    entries += [path for folder in HERE.glob("families_v*") for path in folder.iterdir()]
    sizes = [sum(file.stat().st_size for file in (path, *path.rglob("*"))) for path in entries]
    assert len(sizes) >= 60 and max(sizes) < 100_000
    assert sum(sizes) < 1_100_000 * FORMAT_VERSION
