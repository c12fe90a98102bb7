"""P9: checkpoints of OpenNMT-py and eole compute what their definitions compute, and what these programs compute."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from damaged_checkpoints import refusal
from dragoman.formats.importing import eole, opennmt
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.importer import _plan, import_model, opened
from dragoman.formats.importing.numpy_reference import SearchedModel
from dragoman.formats.importing.toolkit_files import EoleCheckpoint, OpenNMTCheckpoint
from dragoman.models.model_folder import load_network
from dragoman.tokenizers import BOS, EOS, Tokenizer
from every_kind import covering
from imported_checks import cases, check_native_engine, imported_toolkit, logits
from importing_attacks import ATTACKS
from marian_files import LINES
from opennmt_checkpoints import MODELS, TOOLKITS, eole_settings, opennmt_options, written, written_lists

FAMILIES: dict[str, ModuleType] = {"opennmt": opennmt, "eole": eole}
CASES = [(toolkit, name) for toolkit in TOOLKITS for name in MODELS]


@pytest.fixture(scope="module", params=covering(CASES, {("opennmt", "biases"), ("eole", "untied")}), ids="-".join)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """Name of the model, its folder, and what was imported from it."""
    folder = tmp_path_factory.mktemp("opennmt")
    toolkit, name = request.param
    source = written(folder / "source", toolkit, name)
    return name, source, imported_toolkit(source, toolkit, LINES)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_logits_are_those_of_the_definition(imported: tuple[str, Path, Path], dtype: str, tolerance: float) -> None:
    _, folder, model = imported
    checkpoint = opened(folder)
    family, plan = _plan(checkpoint)
    own = FAMILIES[family].definition(checkpoint, np.dtype(dtype).type)
    runtime = SearchedModel(own, "", (plan.vocabulary.source, plan.vocabulary.target), plan.vocabulary.target[EOS])
    tokenizer = plan.vocabulary.tokenizer
    assert isinstance(tokenizer, Tokenizer) and not tokenizer.sources_end
    for source, target in cases(tokenizer, LINES):
        assert EOS not in source
        ours = logits(model, getattr(torch, dtype), source, target)
        known = np.array(plan.vocabulary.target) >= 0
        theirs = runtime.logits(source, target)[:, plan.vocabulary.target]
        assert np.abs(ours - theirs)[:, known].max() < tolerance


def test_the_native_engine_translates_alike(imported: tuple[str, Path, Path]) -> None:
    check_native_engine(imported[2], LINES)


def test_missing_biases_are_0(imported: tuple[str, Path, Path]) -> None:
    name, _, folder = imported
    network = load_network(folder)[0]
    biases = {key: float(each.detach().abs().max()) for key, each in network.named_parameters() if key.endswith("bias")}
    for part, key in (("attn.", "attention_bias"), ("ffn.", "ffn_bias")):
        own = {size > 0 for name_, size in biases.items() if part in name_ and "norm" not in name_}
        assert own == {bool(MODELS[name].get(key))}


# ---------------------------------------------------------------------------------------------------- original programs


def _original_logits(toolkit: str, folder: Path, name: str) -> Any:
    """Return a function (source, target) -> logits (T, V) of the program itself, on ids of the checkpoint."""
    own, lists = MODELS[name], written_lists(name)
    checkpoint = opened(folder)
    state = {key: each for key, each in checkpoint.tensors.items() if not key.endswith((".pe", ".layer_scalar"))}
    if toolkit == "opennmt":
        builder = pytest.importorskip("onmt.model_builder", reason="needs: pip install OpenNMT-py")
        model = _opennmt_model(builder, name, lists)
    else:
        pytest.importorskip("eole.models.model", reason="needs: pip install eole")
        model = _eole_model(name, lists)
        state.setdefault("tgt_emb.embeddings.weight", state["src_emb.embeddings.weight"])
        state.setdefault("generator.weight", state["tgt_emb.embeddings.weight"])
    computed = {key: each for key, each in model.state_dict().items() if key.endswith((".pe", ".layer_scalar"))}
    torch.nn.Module.load_state_dict(model, state | computed)  # all names and shapes
    model.eval()
    assert own["width"] == model.generator.in_features

    def original(source: list[int], target: list[int]) -> np.ndarray:
        src, tgt = torch.tensor([source]), torch.tensor([[*target, 0]])
        lengths = torch.tensor([len(source)])
        with torch.no_grad():
            if toolkit == "opennmt":
                found = model(src[:, :, None], tgt[:, :, None], lengths)[0]
            else:
                found = model(src, tgt, lengths).dec_out
            result: np.ndarray = model.generator(found)[0].numpy()
        return result

    return original


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _opennmt_model(builder: Any, name: str, lists: list[list[str]]) -> Any:
    parser = _module("onmt.utils.parse").ArgumentParser()
    _module("onmt.opts").model_opts(parser)
    options, _ = parser.parse_known_args([])
    vars(options).update(opennmt_options(name) | {"dropout": [0.0], "attention_dropout": [0.0]})
    for key in ("freeze_word_vecs_enc", "freeze_word_vecs_dec", "parallel_mode", "optim", "world_size"):
        setattr(options, key, {"optim": "adam", "world_size": 1, "parallel_mode": "data_parallel"}.get(key, False))
    content = {"src": lists[0], "tgt": lists[1], "data_task": "seq2seq", "decoder_start_token": "<s>"}
    return builder.build_base_model(options, _module("onmt.inputters.inputter").dict_to_vocabs(content))


def _eole_model(name: str, lists: list[list[str]]) -> Any:
    settings = eole_settings(name) | {"training": {"dropout": [0.0], "attention_dropout": [0.0]}, "transforms": []}
    config = _module("eole.config.run").TrainConfig(data={}, src_vocab="x", **settings)
    special = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>"}
    content = {"src": lists[0], "tgt": lists[1], "decoder_start_token": "<s>", "specials": special}
    vocabulary = _module("eole.inputters.inputter").dict_to_vocabs(content)
    model_class = _module("eole.models.model").get_model_class(config.model)
    return model_class.build(config.model, vocabulary, config.training)


def test_logits_are_those_of_the_program(imported: tuple[str, Path, Path]) -> None:
    name, folder, model = imported
    checkpoint = opened(folder)
    original = _original_logits("eole" if isinstance(checkpoint, EoleCheckpoint) else "opennmt", folder, name)
    plan = _plan(checkpoint)[1]
    tokenizer = plan.vocabulary.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    for source, target in cases(tokenizer, LINES):
        prefix = [plan.vocabulary.target[token] for token in (BOS, *target)]
        theirs = original([plan.vocabulary.source[token] for token in source], prefix)[:, plan.vocabulary.target]
        ours = logits(model, torch.float32, source, target)
        assert np.abs(ours - theirs).max() < 1e-5


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.fixture
def eole_folder(tmp_path: Path) -> Path:
    return written(tmp_path / "checkpoint", "eole", "tied")


def _eole_changed(folder: Path, changes: dict[str, Any]) -> None:
    settings = json.loads((folder / "config.json").read_text())
    for path, value in changes.items():
        *groups, key = path.split(".")
        part = settings
        for group in groups:
            part = part.setdefault(group, {})
        part[key] = value
    (folder / "config.json").write_text(json.dumps(settings))


def test_every_reason_of_eole_is_in_one_message(eole_folder: Path) -> None:
    _eole_changed(
        eole_folder,
        {
            "model.architecture": "transformer_lm", "model.decoder.heads_kv": 1, "model.encoder.layers": "many",
            "model.encoder.encoder_layer_style": "postnorm", "model.embeddings.position_encoding_type": "Rotary",
            "model.mlp_activation_fn": "gated-silu", "training.lora_layers": ["linear_query"],
            "transforms": ["onmt_tokenize"], "model.decoder.transformer_ff": 9,
        },
    )  # fmt: skip
    (eole_folder / "sentencepiece.model").unlink()
    (eole_folder / "model.01.safetensors").write_bytes(b"\x80\x04K\x01.")
    message = refusal(eole_folder)
    for reason in (
        "model.architecture = 'transformer_lm'; accepted: 'transformer'", "model.decoder.heads_kv = 1",
        "model.encoder.layers = 'many'; accepted: an integer", "encoder_layer_style = 'postnorm'; accepted: 'standard'",
        "model.embeddings.position_encoding_type = 'Rotary'", "mlp_activation_fn = 'gated-silu'; accepted: 'relu'",
        "training.lora_layers = ['linear_query']", "transforms = 'onmt_tokenize'; accepted: 'sentencepiece'",
        "model.encoder.transformer_ff = 7, model.decoder.transformer_ff = 9", "the sentencepiece model is not known",
        "model.01.safetensors",
    ):  # fmt: skip
        assert reason in message


def test_every_reason_of_opennmt_is_in_one_message(tmp_path: Path) -> None:
    changes = {
        "decoder_type": "rnn", "position_encoding": False, "max_relative_positions": -1, "num_kv": 1, "heads": 5,
        "layer_norm": "rms", "pos_ffn_activation_fn": "silu", "copy_attn": True, "dec_layers": 0,
        "transforms": ["bpe"], "src_prefix": ">>de<<", "lora_layers": ["w_1"],
    }  # fmt: skip
    folder = written(tmp_path / "checkpoint", "opennmt", "tied", settings=opennmt_options("tied") | changes)
    (folder / "sentencepiece.model").unlink()
    message = refusal(folder)
    for reason in (
        "decoder_type = 'rnn'; accepted: 'transformer'", "position_encoding = False; accepted: True",
        "max_relative_positions = -1", "num_kv = 1", "layer_norm = 'rms'; accepted: 'standard'",
        "pos_ffn_activation_fn = 'silu'; accepted: 'relu', 'gelu'", "copy_attn = True", "dec_layers = 0; accepted: an",
        "transforms = 'bpe'", "src_prefix = '>>de<<'", "lora_layers = ['w_1']", "the sentencepiece model is not known",
    ):  # fmt: skip
        assert reason in message


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model.decoder.layers": 3}, "missing tensors: decoder.transformer_layers.2."),
        ({"model.share_embeddings": False}, "missing tensors: tgt_emb.embeddings.weight"),
        ({"model.encoder.heads": 5, "model.decoder.heads": 5}, "hidden_size = 12; accepted: even, and a multiple of"),
        ({"model.norm_eps": "x"}, "norm_eps = 'x'; accepted: a number between 0 and 1"),
        ({"model.encoder.add_key_bias": True}, "add_key_bias = True"),
        ({"training.freeze_decoder": True}, "freeze_decoder = True"),
    ],
    ids=["layers", "tie", "heads", "eps", "key bias", "frozen"],
)
def test_wrong_settings(change: dict[str, Any], reason: str, eole_folder: Path) -> None:
    _eole_changed(eole_folder, change)
    assert reason in refusal(eole_folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"src": ["<unk>", "a"]}, "share_embeddings = True, but the vocabularies of source and target differ"),
        ({"tgt": ["a", "b"]}, "vocabulary, tgt: no unk_token '<unk>', bos_token '<s>', eos_token '</s>'"),
        ({"tgt": "text"}, "vocabulary, tgt: not a list of tokens"),
        ({"decoder_start_token": "</s>"}, "decoder_start_token = '</s>'; accepted: another token"),
        ({"tgt": ["<unk>", "<s>", "</s>", "a", "a"]}, "vocabulary, tgt: the same token twice"),
    ],
    ids=["shared", "special", "type", "start", "twice"],
)
def test_wrong_vocabularies(change: dict[str, Any], reason: str, eole_folder: Path) -> None:
    content = json.loads((eole_folder / "vocab.json").read_text())
    (eole_folder / "vocab.json").write_text(json.dumps(content | change))
    assert reason in refusal(eole_folder)


def test_damaged_checkpoints_of_opennmt(tmp_path: Path) -> None:
    folder = written(tmp_path / "checkpoint", "opennmt", "biases")
    (folder / "m.pt").write_bytes((folder / "m.pt").read_bytes()[:-900])
    assert "not in PyTorch's zip format, or truncated" in refusal(folder)
    torch.save({"model": {}}, folder / "m.pt")
    assert "no 'opt' and 'vocab'; accepted: checkpoints of OpenNMT-py 3" in refusal(folder)
    folder = written(tmp_path / "shards", "opennmt", "untied")
    (folder / "m.00.safetensors").unlink()
    assert "no weights; accepted: m.[0-9][0-9].safetensors" in refusal(folder)


def test_an_attack_beside_the_weights_does_not_execute(tmp_path: Path) -> None:
    target = tmp_path / "executed"
    folder = written(tmp_path / "checkpoint", "opennmt", "tied", beside=ATTACKS["mkdir"](target).payload)
    assert "it contains an object of posix.mkdir, which could run code" in refusal(folder)
    assert not target.exists()
    torch.load(folder / "m.pt", weights_only=False)
    assert target.exists()


def test_formats_are_recognized(tmp_path: Path) -> None:
    folder = written(tmp_path / "checkpoint", "opennmt", "tied")
    assert isinstance(opened(folder), OpenNMTCheckpoint) and isinstance(opened(folder / "m.pt"), OpenNMTCheckpoint)
    shutil.copy(folder / "m.pt", folder / "m2.pt")
    assert "several models; import one of these files" in refusal(folder)
    linked = tmp_path / "eole"
    step = written(linked / "step_3", "eole", "untied")
    (step / "optimizer.pt").write_bytes(b"")
    for path in step.iterdir():
        (linked / path.name).symlink_to(f"step_3/{path.name}")  # as eole does for the last checkpoint
    checkpoint = opened(linked)
    assert type(checkpoint) is EoleCheckpoint and isinstance(checkpoint, Checkpoint)
    assert import_model(linked, tmp_path / "model").parity.met
