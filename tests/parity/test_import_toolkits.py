"""P9: checkpoints of fairseq, JoeyNMT, OpenNMT-py and eole compute what their definitions compute.

Where a toolkit is installed, they compute what the toolkit computes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import sentencepiece as spm
import torch

from dragoman import Translator
from dragoman.formats.importing import eole, fairseq, joeynmt, opennmt
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.family import Plan
from dragoman.formats.importing.importer import _plan, import_model, opened
from dragoman.formats.importing.listed_vocabulary import restricted
from dragoman.formats.importing.numpy_reference import SearchedModel
from dragoman.formats.importing.toolkit_files import (
    EoleCheckpoint,
    FairseqCheckpoint,
    JoeyCheckpoint,
    OpenNMTCheckpoint,
)
from dragoman.models.model_folder import load_network
from dragoman.tokenizers import BOS, EOS, PAD, Tokenizer
from every_kind import covering
from imported_checks import ATTACKS, cases, logits, refusal
from marian_files import LINES, vocabulary
from small_run import write_lines
from toolkit_checkpoints import (
    FAIRSEQ,
    JOEY,
    OPENNMT,
    eole_settings,
    fairseq_checkpoint,
    fairseq_options,
    joey_checkpoint,
    joey_settings,
    opennmt_checkpoint,
    opennmt_lists,
    opennmt_options,
)


class Toolkit(NamedTuple):
    """weights: the file of the weights."""

    module: ModuleType
    checkpoint: type[Checkpoint]
    models: dict[str, dict[str, Any]]
    write: Callable[..., Path]
    weights: str


TOOLKITS = {
    "fairseq": Toolkit(fairseq, FairseqCheckpoint, FAIRSEQ, fairseq_checkpoint, "checkpoint_best.pt"),
    "joeynmt": Toolkit(joeynmt, JoeyCheckpoint, JOEY, joey_checkpoint, "best.ckpt"),
    "opennmt": Toolkit(opennmt, OpenNMTCheckpoint, OPENNMT, partial(opennmt_checkpoint, toolkit="opennmt"), "m.pt"),
    "eole": Toolkit(eole, EoleCheckpoint, OPENNMT, partial(opennmt_checkpoint, toolkit="eole"), "model.01.safetensors"),
}
CASES = [(toolkit, name) for toolkit, each in TOOLKITS.items() for name in each.models]
MAIN = {("fairseq", "learned"), ("joeynmt", "pre"), ("opennmt", "biases"), ("eole", "untied")}


class Imported(NamedTuple):
    """A checkpoint, its folder, and the model folder that was imported from it."""

    toolkit: str
    name: str
    source: Path
    model: Path

    def opened(self) -> tuple[Any, Plan, Tokenizer]:
        """The checkpoint, the plan of its import and the tokenizer."""
        checkpoint = opened(self.source)
        assert isinstance(checkpoint, TOOLKITS[self.toolkit].checkpoint)
        plan = _plan(checkpoint)[1]
        assert isinstance(plan.vocabulary.tokenizer, Tokenizer)
        return checkpoint, plan, plan.vocabulary.tokenizer


@pytest.fixture(scope="module", params=covering(CASES, MAIN), ids="-".join)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    folder = tmp_path_factory.mktemp("toolkit")
    toolkit, name = request.param
    source = TOOLKITS[toolkit].write(folder / "source", name)
    done = import_model(source, folder / "model", write_lines(folder / "lines.txt", LINES))
    assert done.family == toolkit and done.parity.met and done.tokenizer and done.tokenizer.met
    assert done.parity.greedy.same == len(LINES)  # type: ignore[attr-defined]
    assert done.parity.beam.different == 0  # type: ignore[attr-defined]
    return Imported(toolkit, name, source, done.folder)


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-10)])
def test_logits_are_those_of_the_definition(imported: Imported, dtype: str, tolerance: float) -> None:
    checkpoint, plan, tokenizer = imported.opened()
    definition = TOOLKITS[imported.toolkit].module.definition(checkpoint, np.dtype(dtype).type)
    ids = plan.vocabulary.source, plan.vocabulary.target
    runtime = SearchedModel(definition, "", ids, plan.vocabulary.target[EOS])
    begins_with_end = plan.vocabulary.target[BOS] == plan.vocabulary.target[EOS]  # fairseq
    known = np.array(plan.vocabulary.target) >= 0
    if begins_with_end:
        known[[PAD, BOS]] = False
        if not FAIRSEQ[imported.name].get("learned_pos"):
            tolerance = 1e-5  # the float32 sinusoids of fairseq differ from float64 ones, of the definition
    assert tokenizer.sources_end == (imported.toolkit in ("fairseq", "joeynmt"))
    for source, target in cases(tokenizer, LINES):
        assert (EOS in source) == tokenizer.sources_end
        ours = logits(imported.model, getattr(torch, dtype), source, target)
        theirs = runtime.logits(source, target)[:, plan.vocabulary.target]
        assert np.abs(ours - theirs)[:, known].max() < tolerance
        if begins_with_end:
            assert np.abs(ours[:, EOS] - 100 - ours[:, BOS]).max() < 1e-4  # a copy of the end


def test_it_translates_and_keeps_languages_and_search(imported: Imported) -> None:
    translator = Translator.load(imported.model, engine="pytorch", quantize="none")
    assert len([each.text for each in translator.translate(LINES[:2])]) == 2
    config = load_network(imported.model)[2]
    languages = {"fairseq": ("de", "en"), "joeynmt": ("en", "de")}.get(imported.toolkit, ("source", "target"))
    assert (config.parallel.source_language, config.parallel.target_language) == languages
    if imported.toolkit == "joeynmt":
        assert (config.search.beam, config.search.alpha) == (3, 0.6)


def test_missing_biases_are_0(imported: Imported) -> None:
    network = load_network(imported.model)[0]
    biases = {key: float(each.detach().abs().max()) for key, each in network.named_parameters() if key.endswith("bias")}
    for part, key in (("attn.", "attention_bias"), ("ffn.", "ffn_bias")):
        sizes = {size > 0 for name, size in biases.items() if part in name and "norm" not in name}
        always = imported.toolkit in ("fairseq", "joeynmt")
        assert sizes == {always or bool(OPENNMT[imported.name].get(key))}


def test_ids_are_those_of_the_dictionaries_of_fairseq(tmp_path: Path) -> None:
    checkpoint = opened(fairseq_checkpoint(tmp_path / "checkpoint", "tied"))
    assert isinstance(checkpoint, FairseqCheckpoint)
    source = fairseq.token_lists(checkpoint)[0]
    assert list(source.tokens[:4]) == ["<s>", "<pad>", "</s>", "<unk>"] and source.tokens[-1] == "madeupword0000"
    tokenizer = _plan(checkpoint)[1].vocabulary.tokenizer
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.source_piece(source.order.index(9)) == source.tokens[9]


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


# ---------------------------------------------------------------------------------------------------- original programs
# Each returns a function (source, target) -> logits (T, V) of the program itself, on ids of the checkpoint.

Original = Callable[[list[int], list[int]], np.ndarray]


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _fairseq(name: str, folder: Path) -> Original:
    library = pytest.importorskip("fairseq.models.transformer", reason="needs: pip install fairseq")
    dictionary = _module("fairseq.data").Dictionary
    sides = [dictionary.load(str(folder / f"dict.{code}.txt")) for code in ("de", "en")]
    task = argparse.Namespace(source_dictionary=sides[0], target_dictionary=sides[1])
    model = library.TransformerModel.build_model(argparse.Namespace(**fairseq_options(name)), task).eval()
    model.load_state_dict(torch.load(folder / "checkpoint_best.pt", weights_only=False)["model"])
    for layer in model.encoder.layers:
        layer.can_use_fastpath = False  # of PyTorch, for padded batches

    def original(source: list[int], target: list[int]) -> np.ndarray:
        result: np.ndarray = model(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([target]))[0][0]
        return np.asarray(result)

    return original


def _joeynmt(name: str, folder: Path) -> Original:
    library = pytest.importorskip("joeynmt.model", reason="needs: pip install joeynmt")
    settings = json.loads((folder / "config.yaml").read_text())
    special = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None, unk_id=0, pad_id=1,
        bos_id=2, eos_id=3, sep_id=4, lang_tags=[],
    )  # fmt: skip
    lists = [(folder / f"{side}_vocab.txt").read_text().split("\n")[:-1] for side in ("src", "trg")]
    sides = [_module("joeynmt.vocabulary").Vocabulary(tokens[4:], special) for tokens in lists]
    model = library.build_model(settings["model"], *sides).eval()
    tables = {key: value for key, value in model.state_dict().items() if key.endswith(".pe")}
    model.load_state_dict(torch.load(folder / "best.ckpt")["model_state"] | tables)  # all names and shapes
    file = str(folder / ("sp.src.model" if JOEY[name].get("two") else "sp.model"))
    cut = _module("joeynmt.tokenizers").SentencePieceTokenizer(model_file=file)
    if hasattr(cut.spm, "SetVocabulary"):  # not in sentencepiece 0.2.3
        cut.set_vocab(sides[0])
        plan = _plan(opened(folder))[1]
        assert isinstance(plan.vocabulary.tokenizer, Tokenizer)
        for line in LINES:
            ids = [plan.vocabulary.source[token] for token in plan.vocabulary.tokenizer.encode_source(line)]
            assert ids == [sides[0].lookup(piece) for piece in cut(line)] + [3]

    def original(source: list[int], target: list[int]) -> np.ndarray:
        mask, prefix = torch.ones(1, 1, len(source), dtype=torch.bool), torch.tensor([target])
        memory, _ = model.encoder(model.src_embed(torch.tensor([source])), None, mask)
        result: np.ndarray = model.decoder(
            trg_embed=model.trg_embed(prefix), encoder_output=memory, encoder_hidden=None, src_mask=mask,
            unroll_steps=0, hidden=None, trg_mask=torch.ones(1, 1, prefix.size(1), dtype=torch.bool),
        )[0][0].numpy()  # fmt: skip
        return result

    return original


def _opennmt(name: str, folder: Path) -> Original:
    builder = pytest.importorskip("onmt.model_builder", reason="needs: pip install OpenNMT-py")
    parser = _module("onmt.utils.parse").ArgumentParser()
    _module("onmt.opts").model_opts(parser)
    options, _ = parser.parse_known_args([])
    vars(options).update(opennmt_options(name) | {"dropout": [0.0], "attention_dropout": [0.0]})
    for key in ("freeze_word_vecs_enc", "freeze_word_vecs_dec", "parallel_mode", "optim", "world_size"):
        setattr(options, key, {"optim": "adam", "world_size": 1, "parallel_mode": "data_parallel"}.get(key, False))
    lists = opennmt_lists(name)
    content = {"src": lists[0], "tgt": lists[1], "data_task": "seq2seq", "decoder_start_token": "<s>"}
    model = builder.build_base_model(options, _module("onmt.inputters.inputter").dict_to_vocabs(content))
    return _with_generator(
        model, opened(folder).tensors, lambda src, tgt, n: model(src[:, :, None], tgt[:, :, None], n)[0]
    )


def _eole(name: str, folder: Path) -> Original:
    pytest.importorskip("eole.models.model", reason="needs: pip install eole")
    settings = eole_settings(name) | {"training": {"dropout": [0.0], "attention_dropout": [0.0]}, "transforms": []}
    config = _module("eole.config.run").TrainConfig(data={}, src_vocab="x", **settings)
    special = {"unk_token": "<unk>", "pad_token": "<blank>", "bos_token": "<s>", "eos_token": "</s>"}
    lists = opennmt_lists(name)
    content = {"src": lists[0], "tgt": lists[1], "decoder_start_token": "<s>", "specials": special}
    words = _module("eole.inputters.inputter").dict_to_vocabs(content)
    model = _module("eole.models.model").get_model_class(config.model).build(config.model, words, config.training)
    state = dict(opened(folder).tensors)
    state.setdefault("tgt_emb.embeddings.weight", state["src_emb.embeddings.weight"])
    state.setdefault("generator.weight", state["tgt_emb.embeddings.weight"])
    return _with_generator(model, state, lambda src, tgt, n: model(src, tgt, n).dec_out)


def _with_generator(model: Any, state: dict[str, torch.Tensor], hidden: Callable[..., Any]) -> Original:
    """hidden: returns the vectors before the output layer for source, target and the length of the source."""
    tables = (".pe", ".layer_scalar")
    computed = {key: each for key, each in model.state_dict().items() if key.endswith(tables)}
    given = {key: each for key, each in state.items() if not key.endswith(tables)}
    torch.nn.Module.load_state_dict(model, given | computed)  # all names and shapes
    model.eval()

    def original(source: list[int], target: list[int]) -> np.ndarray:
        src, tgt = torch.tensor([source]), torch.tensor([[*target, 0]])
        result: np.ndarray = model.generator(hidden(src, tgt, torch.tensor([len(source)])))[0].numpy()
        return result

    return original


ORIGINALS = {"fairseq": _fairseq, "joeynmt": _joeynmt, "opennmt": _opennmt, "eole": _eole}


def test_logits_are_those_of_the_program(imported: Imported) -> None:
    original = ORIGINALS[imported.toolkit](imported.name, imported.source)
    _, plan, tokenizer = imported.opened()
    kept = [token for token in range(tokenizer.target_size) if imported.toolkit != "fairseq" or token not in (PAD, BOS)]
    for source, target in cases(tokenizer, LINES):
        prefix = [plan.vocabulary.target[token] for token in (BOS, *target)]
        with torch.no_grad():
            theirs = original([plan.vocabulary.source[token] for token in source], prefix)
        ours = logits(imported.model, torch.float32, source, target)
        assert np.abs(ours[:, kept] - theirs[:, [plan.vocabulary.target[token] for token in kept]]).max() < 1e-5


# ------------------------------------------------------------------------------------------------------------ refusals


def changed_json(path: Path, changes: dict[str, Any]) -> None:
    """Change values of a file; `a.b` is the key `b` of the group `a`."""
    settings = json.loads(path.read_text())
    for name, value in changes.items():
        *groups, key = name.split(".")
        part = settings
        for group in groups:
            part = part.setdefault(group, {})
        part[key] = value
    path.write_text(json.dumps(settings))


def damaged(folder: Path, toolkit: str, changes: dict[str, Any], name: str = "") -> Path:
    """A checkpoint with other settings."""
    name = name or ("post" if toolkit == "joeynmt" else "tied")
    if toolkit == "fairseq":
        return fairseq_checkpoint(folder, name, **changes)
    if toolkit == "opennmt":
        return opennmt_checkpoint(folder, name, "opennmt", settings=opennmt_options(name) | changes)
    TOOLKITS[toolkit].write(folder, name)
    changed_json(folder / ("config.yaml" if toolkit == "joeynmt" else "config.json"), changes)
    return folder


@pytest.mark.parametrize(
    ("toolkit", "changes", "reasons"),
    [
        (
            "fairseq",
            {
                "activation_fn": "tanh", "arch": "lightconv", "encoder_layers": "many", "bpe": "subword_nmt",
                "adaptive_softmax_cutoff": [100], "decoder_normalize_before": True, "tokenizer": "moses",
            },
            (
                "activation_fn = 'tanh'; accepted: 'relu'", "arch = 'lightconv'; accepted: 'transformer'",
                "encoder_layers = 'many'; accepted: an integer", "adaptive_softmax_cutoff = [100]; accepted: False",
                "encoder_normalize_before = False, decoder_normalize_before = True",
                "bpe = 'subword_nmt'; accepted: None", "tokenizer = 'moses'; accepted: None",
            ),
        ),
        (
            "joeynmt",
            {
                "model.encoder.type": "recurrent", "model.decoder.activation": "tanh", "model.encoder.alpha": 0.7,
                "data.src.lowercase": True, "data.trg.tokenizer_type": "subword-nmt",
                "model.encoder.num_layers": "many", "data.src.tokenizer_cfg.pretokenizer": "moses",
                "data.special_symbols.lang_tags": ["<de>"],
            },
            (
                "model.encoder.type = 'recurrent'; accepted: 'transformer'",
                "model.decoder.activation = 'tanh'; accepted", "model.encoder.alpha = 0.7",
                "data.src.lowercase = True; accepted: False",
                "data.trg.tokenizer_type = 'subword-nmt'; accepted: 'sentencepiece'",
                "model.encoder.num_layers = 'many'; accepted: an integer", "pretokenizer = 'moses'; accepted: 'none'",
                "lang_tags = ['<de>']; accepted: models of one direction",
            ),
        ),
        (
            "opennmt",
            {
                "decoder_type": "rnn", "position_encoding": False, "max_relative_positions": -1, "num_kv": 1,
                "heads": 5, "layer_norm": "rms", "pos_ffn_activation_fn": "silu", "copy_attn": True, "dec_layers": 0,
                "transforms": ["bpe"], "src_prefix": ">>de<<", "lora_layers": ["w_1"],
            },
            (
                "decoder_type = 'rnn'; accepted: 'transformer'", "position_encoding = False; accepted: True",
                "max_relative_positions = -1", "num_kv = 1", "layer_norm = 'rms'; accepted: 'standard'",
                "pos_ffn_activation_fn = 'silu'; accepted: 'relu', 'gelu'", "copy_attn = True",
                "dec_layers = 0; accepted: an", "transforms = 'bpe'", "src_prefix = '>>de<<'", "lora_layers = ['w_1']",
            ),
        ),
        (
            "eole",
            {
                "model.architecture": "transformer_lm", "model.decoder.heads_kv": 1, "model.encoder.layers": "many",
                "model.encoder.encoder_layer_style": "postnorm", "model.embeddings.position_encoding_type": "Rotary",
                "model.mlp_activation_fn": "gated-silu", "training.lora_layers": ["linear_query"],
                "transforms": ["onmt_tokenize"], "model.decoder.transformer_ff": 9,
            },
            (
                "model.architecture = 'transformer_lm'; accepted: 'transformer'", "model.decoder.heads_kv = 1",
                "model.encoder.layers = 'many'; accepted: an integer",
                "encoder_layer_style = 'postnorm'; accepted: 'standard'",
                "model.embeddings.position_encoding_type = 'Rotary'",
                "mlp_activation_fn = 'gated-silu'; accepted: 'relu'", "training.lora_layers = ['linear_query']",
                "transforms = 'onmt_tokenize'; accepted: 'sentencepiece'",
                "model.encoder.transformer_ff = 7, model.decoder.transformer_ff = 9",
            ),
        ),
    ],
    ids=list(TOOLKITS),
)  # fmt: skip
def test_every_reason_is_in_one_message(
    toolkit: str, changes: dict[str, Any], reasons: tuple[str, ...], tmp_path: Path
) -> None:
    folder = damaged(tmp_path / "checkpoint", toolkit, changes)
    (model,) = [*folder.glob("*.model")]
    model.unlink()
    if toolkit in ("joeynmt", "eole"):  # the others have the settings beside the weights
        path = folder / TOOLKITS[toolkit].weights
        path.write_bytes(path.read_bytes()[:-900])
        reasons += (path.name,)
    message = refusal(folder)
    for reason in (*reasons, "the sentencepiece model is not known"):
        assert reason in message


@pytest.mark.parametrize(
    ("toolkit", "changes", "reason"),
    [
        ("fairseq", {"encoder_layers": 0}, "encoder_layers = 0; accepted: an integer, at least 1"),
        (
            "fairseq",
            {"share_all_embeddings": False, "share_decoder_input_output_embed": False, "encoder_embed_dim": 24},
            "24",
        ),
        ("fairseq", {"decoder_output_dim": 24}, "decoder_output_dim = 24; accepted: that of the decoder, 12"),
        ("joeynmt", {"model.encoder.num_layers": 0}, "num_layers = 0; accepted: an integer, at least 1"),
        (
            "joeynmt",
            {"model.decoder.ff_size": 9},
            "model.encoder.ff_size = 7, model.decoder.ff_size = 9; accepted: equal",
        ),
        ("joeynmt", {"model": joey_settings("untied")["model"]}, "missing tensors"),
        ("joeynmt", {"data.special_symbols.pad_id": 7}, "ids of pad, unk, bos, eos = [7, 0, 2, 3]; accepted: 0 to 3"),
        ("joeynmt", {"model.encoder.num_heads": 5}, "num_heads"),
        ("eole", {"model.share_embeddings": False}, "missing tensors: tgt_emb.embeddings.weight"),
        (
            "eole",
            {"model.encoder.heads": 5, "model.decoder.heads": 5},
            "hidden_size = 12; accepted: even, and a multiple of",
        ),
        ("eole", {"model.norm_eps": "x"}, "norm_eps = 'x'; accepted: a number between 0 and 1"),
        ("eole", {"model.encoder.add_key_bias": True}, "add_key_bias = True"),
        ("eole", {"training.freeze_decoder": True}, "freeze_decoder = True"),
    ],
)
def test_wrong_settings(toolkit: str, changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    assert reason in refusal(damaged(tmp_path / "checkpoint", toolkit, changes))


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
def test_wrong_vocabularies_of_eole(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = opennmt_checkpoint(tmp_path / "checkpoint", "tied", "eole")
    changed_json(folder / "vocab.json", change)
    assert reason in refusal(folder)


def _cut(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-900])


def _write(name: str, content: str | bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _save(name: str, content: object) -> Callable[[Path], Any]:
    return lambda folder: torch.save(content, folder / name)


def _remove(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


TRUNCATED = "not in PyTorch's zip format, or truncated"
PT = "checkpoint_best.pt"


@pytest.mark.parametrize(
    ("toolkit", "name", "change", "reason"),
    [
        ("fairseq", "tied", _cut(PT), TRUNCATED),
        ("fairseq", "tied", _remove("dict.en.txt"), "dict.en.txt: missing"),
        ("fairseq", "tied", _write("dict.en.txt", "a\n"), "dict.en.txt, line 1: 'a'; accepted: a token and"),
        ("fairseq", "tied", _write("dict.en.txt", "a 1\na 2\n"), "dict.en.txt: the same token twice"),
        ("fairseq", "tied", _write("sentencepiece.bpe.model", b"x"), "cannot be read by sentencepiece"),
        ("fairseq", "tied", _save(PT, {"model": {}}), "no options ('args' or 'cfg')"),
        ("fairseq", "tied", _save(PT, [1]), "no options ('args' or 'cfg')"),
        ("joeynmt", "post", _cut("best.ckpt"), TRUNCATED),
        ("joeynmt", "post", _write("src_vocab.txt", "<unk>\na\nb\n"), "src_vocab.txt and trg_vocab.txt"),
        ("joeynmt", "post", _remove("trg_vocab.txt"), "trg_vocab.txt: missing"),
        ("joeynmt", "post", _write("sp.model", b"\x80\x04K\x01."), "cannot be read by sentencepiece"),
        ("joeynmt", "post", _write("config.yaml", "a: !!python/name:os.mkdir"), "not valid YAML"),
        ("joeynmt", "post", _save("best.ckpt", {"state": 1}), "no 'model_state', the weights"),
        ("opennmt", "biases", _cut("m.pt"), TRUNCATED),
        (
            "opennmt",
            "biases",
            _save("m.pt", {"model": {}}),
            "no 'opt' and 'vocab'; accepted: checkpoints of OpenNMT-py",
        ),
        ("opennmt", "untied", _remove("m.00.safetensors"), "no weights; accepted: m.[0-9][0-9].safetensors"),
    ],
)
def test_damaged_folders(toolkit: str, name: str, change: Callable[[Path], Any], reason: str, tmp_path: Path) -> None:
    folder = TOOLKITS[toolkit].write(tmp_path / "checkpoint", name)
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


def test_a_layout_without_the_last_norm_is_refused(tmp_path: Path) -> None:
    message = refusal(fairseq_checkpoint(tmp_path / "checkpoint", "learned", version=2))
    assert "decoder.version = 2: pre-norm without a norm after the last layer; accepted: 3" in message


@pytest.mark.parametrize(("toolkit", "attack"), [("fairseq", "system"), ("joeynmt", "mkdir"), ("opennmt", "mkdir")])
def test_an_attack_beside_the_weights_does_not_execute(toolkit: str, attack: str, tmp_path: Path) -> None:
    target, name = tmp_path / "executed", "post" if toolkit == "joeynmt" else "tied"
    payload = ATTACKS[attack](target).payload
    folder = TOOLKITS[toolkit].write(tmp_path / "checkpoint", name, beside=payload)
    assert f"it contains an object of posix.{attack}, which could run code" in refusal(folder)
    assert not target.exists()
    torch.load(folder / TOOLKITS[toolkit].weights, weights_only=False)
    assert target.exists()


def test_formats_are_recognized(tmp_path: Path) -> None:
    folder = opennmt_checkpoint(tmp_path / "opennmt" / "checkpoint", "tied", "opennmt")
    assert isinstance(opened(folder), OpenNMTCheckpoint) and isinstance(opened(folder / "m.pt"), OpenNMTCheckpoint)
    shutil.copy(folder / "m.pt", folder / "m2.pt")
    assert "several models; import one of these files" in refusal(folder)
    folder = joey_checkpoint(tmp_path / "joeynmt" / "checkpoint", "post")
    (folder / "best.ckpt").rename(folder / "200.ckpt")
    message = refusal(folder)
    assert "several models; import one of these files" in message and "200.ckpt" in message
    assert isinstance(opened(folder / "200.ckpt"), JoeyCheckpoint)
    linked = tmp_path / "eole"
    step = opennmt_checkpoint(linked / "step_3", "untied", "eole")
    (step / "optimizer.pt").write_bytes(b"")
    for path in step.iterdir():
        (linked / path.name).symlink_to(f"step_3/{path.name}")  # as eole does for the last checkpoint
    assert type(opened(linked)) is EoleCheckpoint
    assert import_model(linked, tmp_path / "model").parity.met
