"""The same damages to a checkpoint of every family in the layout of Hugging Face: all reasons, and no folder.

For the other layouts see `test_toolkit_import_refusals.py`, `test_marian_items.py` and the tests in `tests/parity`.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from dragoman.formats.importing import bart
from dragoman.formats.importing.importer import FAMILIES as MODEL_TYPES
from dragoman.formats.importing.importer import _family, opened
from imported_checks import ATTACKS, change_tensors, refusal, set_values
from imported_families import FAMILIES

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use
NAMES = [name for name, case in FAMILIES.items() if case.family in MODEL_TYPES]
TOKENIZERS = (
    "source.spm", "target.spm", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "tokenizer.json",
    "vocab.json", "merges.txt", "vocab.txt", "preprocessor_config.json",
)  # fmt: skip
ACTIVATIONS = ("activation_function", "feed_forward_proj", "hidden_act")
LAYERS = ("encoder_layers", "num_layers", "n_layer", "num_hidden_layers")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("originals")


@pytest.fixture(params=NAMES)
def checkpoint(request: pytest.FixtureRequest, originals: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(written(originals, request.param), tmp_path / "checkpoint"))


def written(originals: Path, name: str) -> Path:
    if not (originals / name).exists():
        FAMILIES[name].write(originals / name)
    return originals / name


ODD = ["x", -1, 0, 3, 1.5, True, None, [], [None], {}, {"rope_type": ["x"]}, {"rope_type": "linear"}, float("nan")]


@pytest.fixture(params=FAMILIES)
def original(request: pytest.FixtureRequest, originals: Path) -> Path:
    pytest.importorskip("ctranslate2")
    return written(originals, request.param)


def test_a_refused_setting_is_stated_with_its_value_and_what_is_accepted(original: Path) -> None:
    checkpoint = opened(original)
    family, refused = _family(checkpoint)[1], 0
    settings = dict(checkpoint.settings) | {"partial_rotary_factor": 1.0, "layer_types": None, "attention_bias": None}
    tables = [(settings, key) for key in settings if key != "model_type"]
    tables += [(value, key) for value in settings.values() if isinstance(value, dict) for key in value]
    for table, key in tables:
        before = table[key]
        for value in ODD:
            table[key] = value
            for problem in family.unsupported(settings):
                refused += 1
                assert re.search(r"^[^=]* (= .+|is missing); accepted: .", problem), (key, value, problem)
        table[key] = before
    assert refused > 50


def setting(folder: Path, names: tuple[str, ...]) -> tuple[str, Any]:
    """The first of some settings that a checkpoint has."""
    found = json.loads((folder / "config.json").read_text())
    return next((name, found[name]) for name in names if name in found)


def test_every_model_type_is_covered() -> None:
    assert {FAMILIES[name].family for name in NAMES} == MODEL_TYPES.keys()


def test_an_unknown_architecture(checkpoint: Path) -> None:
    set_values(checkpoint, model_type="whisper")
    assert "model_type 'whisper' of config.json is not supported; accepted: bart, bert" in refusal(checkpoint)


def test_activation_tokenizer_and_weights_in_one_message(checkpoint: Path) -> None:
    """ByT5 has no file of a tokenizer."""
    name, _ = setting(checkpoint, ACTIVATIONS)
    set_values(checkpoint, **{name: "softplus"})
    files = [file for file in TOKENIZERS if (checkpoint / file).exists()]
    for file in files:
        (checkpoint / file).unlink()
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    message = refusal(checkpoint)
    assert f"{name} = 'softplus'; accepted: " in message
    assert "model.safetensors: " in message and "its header specifies" in message
    others = [line for line in message.splitlines()[1:] if "softplus" not in line and "safetensors" not in line]
    assert bool(others) == bool(files), message
    assert all(any(word in line for word in ("missing", "no tokenizer", "no vocabulary")) for line in others), message


@pytest.mark.parametrize("more", [True, False], ids=["missing", "unused"])
def test_another_number_of_layers(more: bool, checkpoint: Path) -> None:
    name, layers = setting(checkpoint, LAYERS)
    if more:
        set_values(checkpoint, **{name: layers + 1})
        assert "missing tensors: " in refusal(checkpoint)
        return

    def add(tensors: dict[str, torch.Tensor]) -> None:
        part = f".{layers - 1}."
        tensors |= {
            key.replace(part, f".{layers}.", 1): tensor.clone() for key, tensor in tensors.items() if part in key
        }

    change_tensors(checkpoint, add)
    assert "unused tensors: " in refusal(checkpoint)


def test_another_size_of_the_vocabulary(checkpoint: Path) -> None:
    """For image models the number of labels."""
    content = json.loads((checkpoint / "config.json").read_text())
    if content["model_type"] == "vit":
        set_values(checkpoint, id2label={**content["id2label"], "4": "more"})
    else:
        set_values(checkpoint, vocab_size=content["vocab_size"] + 9)
    message = refusal(checkpoint)
    assert "the settings and the vocabulary require" in message or "but the vocabulary of config.json has" in message


@pytest.mark.parametrize("tokenizer", [True, False], ids=["with tokenizer", "without"])
def test_settings_tensors_and_tokenizer_in_one_message(tokenizer: bool, checkpoint: Path) -> None:
    """Unknown activation, wrong number of layers and wrong size of the vocabulary, with and without a tokenizer."""
    content = json.loads((checkpoint / "config.json").read_text())
    (activation, _), (layers, count) = setting(checkpoint, ACTIVATIONS), setting(checkpoint, LAYERS)
    kind = str(content.get(activation, "")).startswith("gated-") * "gated-"
    image = content["model_type"] == "vit"
    size = {"id2label": {**content["id2label"], "4": "more"}} if image else {"vocab_size": content["vocab_size"] + 9}
    set_values(checkpoint, **{activation: f"{kind}softplus", layers: count + 1, **size})
    files = [file for file in TOKENIZERS if (checkpoint / file).exists()] * (not tokenizer)
    for file in files:
        (checkpoint / file).unlink()
    message = refusal(checkpoint)
    assert f"{activation} = '{kind}softplus'; accepted: " in message
    if files:
        assert any(word in message for word in (f"{files[0]}: missing", "no tokenizer", "no vocabulary")), message
    if image and files:  # the table of tensors depends on preprocessor_config.json
        return
    (missing,) = [line for line in message.splitlines() if "missing tensors: " in line]
    names = missing.partition(": ")[2].split(", ")
    assert {re.findall(r"\b(?:layers?|block|h)\.(\d+)\.", name)[0] for name in names} == {str(count)}, message
    assert f", the settings and the vocabulary require ({5 if image else content['vocab_size'] + 9}, " in message
    assert "unused tensors" not in message


def test_special_tokens_of_other_types(originals: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written(originals, "bart"), tmp_path / "checkpoint"))
    for value in (3, [1], {"5": 3}, {"x": {}}, None):
        set_values(folder, "tokenizer_config.json", added_tokens_decoder=value)
        (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": value}))
        assert bart._codes(opened(folder), 9) == {}
    (folder / "tokenizer.json").unlink()
    set_values(folder, bos_token_id=3)
    assert "decoder_start_token_id = [1, 3, 2, 2]; accepted: ids below" in refusal(folder)
    set_values(folder, activation_function="x" * 10_000)
    assert len(refusal(folder)) < 1000


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_a_pickle_is_refused_and_not_executed(file: str, checkpoint: Path, tmp_path: Path) -> None:
    tensors: dict[str, Any] = safetensors.torch.load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    torch.save(tensors | {"attack": ATTACKS["mkdir"](tmp_path / "executed").payload}, checkpoint / file)
    message = refusal(checkpoint)
    assert ("could run code" if file.endswith(".bin") else "not a safetensors file") in message
    assert not (tmp_path / "executed").exists()
