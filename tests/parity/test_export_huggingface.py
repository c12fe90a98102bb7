"""P9: encoder-decoders exported to `transformers` compute the same there.

Those with the layers of MarianMT become MarianMT, and their import is the identity; others are exported with code.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dragoman.config import parse_config
from dragoman.decoding.pytorch.backend import TorchBackend
from dragoman.decoding.search_types import SearchCall, SearchSettings
from dragoman.errors import UsageError
from dragoman.formats import huggingface
from dragoman.formats.export import export
from dragoman.formats.importing.importer import import_model
from dragoman.models.model_folder import build_for, load_network, save_model, unique_tensors
from dragoman.models.seq2seq import Model, Network
from dragoman.tokenizers import BOS, EOS, PAD, UNK, Tokenizer
from every_kind import covering
from imported_checks import check_wrong_weight, loaded, logits, random_targets, round_trip
from random_models import random_model
from small_run import Cli, digit_pairs, small_document, write_lines
from tiny_translator import tiny_tokenizer
from transformers_checkpoints import t5_checkpoint

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use

MARIAN: dict[str, dict[str, Any]] = {
    "tied": {"d_model": 18, "d_ff": 23, "n_heads": 3, "encoder_layers": 2, "activation": "silu"},
    "one layer, target tied, from zeros": {
        "d_model": 10, "d_ff": 7, "n_heads": 5, "tie": "target", "scale_embeddings": False,
    },
    "untied": {"d_model": 14, "n_heads": 2, "decoder_layers": 3, "tie": "none", "output_bias": True},
    "two vocabularies": {"d_model": 16, "n_heads": 4, "activation": "gelu"},
}  # fmt: skip
CUSTOM: dict[str, dict[str, Any]] = {
    "as multi30k": {
        "d_model": 16, "n_heads": 2, "decoder_layers": 3, "order": "pre", "norm": {"kind": "rms"},
        "position": {"kind": "rotary"}, "activation": "silu", "gated": True, "bias": False,
    },
    "rotary in part, scaled": {
        "d_model": 15, "n_heads": 3, "d_value": 5, "d_key": 8, "norm": {"kind": "rms", "eps": 1e-3}, "d_ff": 9,
        "position": {"kind": "rotary", "fraction": 0.5, "base": 50.0,
                     "scaling": {"kind": "llama3", "original_len": 64, "factor": 4.0}},
        "tie": "none", "output_bias": True, "activation": "gelu",
    },
    "rotary, divided": {
        "d_model": 8, "n_heads": 2, "position": {"kind": "rotary", "scaling": {"kind": "linear"}}, "gated": True,
        "activation": "sigmoid", "order": "pre",
    },
    "learned": {
        "d_model": 12, "n_heads": 3, "position": {"kind": "learned", "max_len": 270}, "normalize_embeddings": True,
        "tie": "target", "scale_embeddings": False, "encoder_layers": 3, "activation": "gelu_tanh",
    },
    "alibi, one key head": {
        "d_model": 18, "n_heads": 6, "n_kv_heads": 1, "position": {"kind": "alibi"}, "order": "pre",
        "norm": {"kind": "layer", "eps": 1e-2}, "bias": False, "tie": "embeddings",
    },
    "t5, grouped heads": {
        "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "position": {"kind": "t5", "buckets": 8, "max_distance": 12},
        "order": "pre", "norm": {"kind": "rms"}, "scale_embeddings": False, "gated": True,
    },
    "no positions, two vocabularies": {"d_model": 10, "n_heads": 1, "position": {"kind": "none"}, "order": "pre"},
    "slow sinusoids": {"d_model": 14, "n_heads": 2, "position": {"kind": "sinusoidal", "full_range": True}},
}  # fmt: skip
ORDER = torch.tensor([PAD, UNK, BOS, EOS])


def model_of(folder: Path, name: str) -> Path:
    search = {"beam": 1 if name.startswith("one layer") else 4, "max_extra": 20}

    def start_from_zeros(network: Network) -> None:
        if "zeros" in name:
            network.get_parameter("decoder.embedding.weight")[BOS] = 0

    settings, shared = (MARIAN | CUSTOM)[name], "two vocabularies" not in name
    return random_model(folder, settings, shared=shared, search=search, change=start_from_zeros)


# ------------------------------------------------------------------------------------------------------------- MarianMT


@pytest.fixture(scope="module", params=MARIAN)
def marian(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, its export `there` and the import `back` of that."""
    folder = round_trip(model_of(tmp_path_factory.mktemp("export"), request.param), "huggingface", 1e-5)
    assert not (folder / "there" / "modeling_dragoman.py").exists()
    return folder


def test_the_import_of_an_export_is_the_identity(marian: Path) -> None:
    """Of the weights; if the start of the decoder is not zero, of what the model computes."""
    before, after = (load_network(marian / name) for name in ("model", "back"))
    ours, theirs = (unique_tensors(network) for network, *_ in (before, after))
    if before[1].shared and ours.get("decoder.embedding.weight", ours["encoder.embedding.weight"])[BOS].any():
        given = [5, 9, 4, EOS], [6, 7, 21]
        found = [torch.tensor(logits(marian / name, torch.float64, *given)) for name in ("model", "back")]
        assert (found[0].log_softmax(-1) - found[1].log_softmax(-1)).abs().max() < 1e-5
    else:
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs.pop(name)), name
        assert all(name == "output.bias" and not tensor.any() for name, tensor in theirs.items())
    ours, read = before[1], after[1]
    assert isinstance(ours, Tokenizer) and isinstance(read, Tokenizer)
    for source, target in [*digit_pairs(20, seed=2), ("Größe, 日本", "x")]:
        assert ours.encode_source(source) == read.encode_source(source)
        assert ours.encode_target(target) == read.encode_target(target)
    (beam, alpha), then = ((one[2].search.beam, one[2].search.alpha) for one in (before, after))
    assert then == (beam, alpha if beam > 1 else 1.0)  # `transformers` refuses a length penalty without a beam


def test_marianmt_has_equal_logits(marian: Path) -> None:
    """Compared with the package directly, with ids of its own tokenizer."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(marian / "there")
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(marian / "there")
    network, tokenizer, _ = load_network(marian / "model")
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    source, target = digit_pairs(1, seed=5)[0]
    given = theirs(source, text_target=target, return_tensors="pt")
    start = torch.tensor([[model.config.decoder_start_token_id, *given.labels[0, :-1].tolist()]])
    with torch.no_grad():
        logits = model(input_ids=given.input_ids, decoder_input_ids=start).logits[0]
        tokens = torch.tensor([[BOS, *tokenizer.encode_target(target)[:-1]]])
        ours = network(torch.tensor([tokenizer.encode_source(source)]), None, tokens)[0]
    # Special tokens have other ids; the others follow in our order.
    size, last = tokenizer.target_size, tokenizer.shared
    order = [2, 1, size - 1, 0, *range(3, size - 1)] if last else [3, 1, 2, 0, *range(4, size)]
    assert model.config.pad_token_id == order[BOS] and logits.shape == ours.shape
    assert (logits[:, order].log_softmax(-1) - ours.log_softmax(-1)).abs().max() < 1e-5


def test_the_converter_of_ctranslate2_accepts_the_folder(marian: Path) -> None:
    """As those of OPUS-MT; it finds the tokens of our greedy search.  Two vocabularies it does not read."""
    pytest.importorskip("ctranslate2")
    from ctranslate2 import Translator
    from ctranslate2.converters import TransformersConverter
    from transformers import AutoTokenizer

    network, tokenizer = loaded(marian / "model")
    if not tokenizer.shared:
        pytest.skip("two vocabularies")
    theirs = AutoTokenizer.from_pretrained(marian / "there")
    TransformersConverter(str(marian / "there")).convert(str(marian / "converted"))
    lines = [source for source, _ in digit_pairs(12, seed=9)]
    ids = [tokenizer.encode_source(line) for line in lines]
    expected = [best.tokens[:12] for (best,) in TorchBackend(network).search(SearchCall(ids, SearchSettings(beam=1)))]
    given = [theirs.convert_ids_to_tokens(theirs(line).input_ids) for line in lines]
    translator = Translator(str(marian / "converted"), compute_type="float32")
    limits = {"min_decoding_length": 0, "max_decoding_length": 12, "suppress_sequences": [["<unused>"]]}
    found = translator.translate_batch(given, beam_size=1, **limits)
    names = [[tokenizer.target_piece(token) for token in row if token != EOS] for row in expected]
    assert [one.hypotheses[0] for one in found] == names
    targets = random_targets(tokenizer, len(lines))
    written = [[tokenizer.target_piece(token) for token in row] for row in targets]
    for row, target, scored in zip(ids, targets, translator.score_batch(given, written), strict=True):
        table = torch.tensor(logits(marian / "model", torch.float32, row, target))
        table[:, BOS] = -torch.inf  # the converter removes their padding token
        probs = table.log_softmax(-1)[range(len(target) + 1), [*target, EOS]]
        assert (probs - torch.tensor(scored.log_probs)).abs().max() < 1e-4


def test_the_code_in_the_readme_of_marianmt_runs(
    marian: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (marian / "there" / "README.md").read_text(), flags=re.S)
    monkeypatch.chdir(marian / "there")
    exec(code.replace("max_new_tokens=200", "max_new_tokens=9"), {})
    assert capsys.readouterr().out.endswith("\n")
    facts = json.loads((marian / "there" / "export.json").read_text())
    assert facts["format"] == "huggingface" and facts["tokenizer"]["source"] == 0 and facts["transformers"]


# ------------------------------------------------------------------------------------------------------ code of its own


@pytest.fixture(scope="module", params=covering(CUSTOM, {"as multi30k", "t5, grouped heads"}))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model` and its export `there`."""
    folder = tmp_path_factory.mktemp("export")
    lines = write_lines(folder / "lines.txt", [source for source, _ in digit_pairs(12, seed=8)])
    done = export(model_of(folder, request.param), folder / "there", "huggingface", check=lines)
    assert done.met and done.parity.largest < 1e-5 and done.parity.greedy.same == 12
    assert done.parity.width == 4 and done.parity.beam.different == 0 and done.parity.beam.same >= 11
    assert done.tokenizer is not None and done.tokenizer.lines > 15
    return folder


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Loads a folder with its code, which `transformers` copies to a cache."""
    from transformers import AutoModelForSeq2SeqLM, dynamic_module_utils

    before = {name for name in sys.modules if name.startswith("transformers_modules")}
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield lambda folder, **given: AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True, **given)
    for name in {name for name in sys.modules if name.startswith("transformers_modules")} - before:
        del sys.modules[name]


def inputs(exported: Path) -> tuple[Any, dict[str, Any], Any, dict[str, Any]]:
    """Return our network, a padded batch for it, their tokenizer, and the batch for their model."""
    from transformers import MarianTokenizer

    network, tokenizer, _ = load_network(exported / "model")
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    theirs = MarianTokenizer.from_pretrained(exported / "there")
    sources, targets = zip(*digit_pairs(3, seed=5), strict=True)
    source = padded([tokenizer.encode_source(line) for line in sources])
    target = padded([[BOS, *tokenizer.encode_target(line)[:-1]] for line in targets])
    given = theirs(list(sources), text_target=list(targets), return_tensors="pt", padding=True)
    start = torch.full((3, 1), 2)
    decoder = torch.cat([start, given.labels[:, :-1]], dim=1)
    batch = {"input_ids": given.input_ids, "attention_mask": given.attention_mask, "decoder_input_ids": decoder}
    return network.eval(), {"source": source, "mask": source != PAD, "target": target}, theirs, batch


def padded(rows: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_logits_are_equal(exported: Path, loading: Callable[..., Any], dtype: torch.dtype, tolerance: float) -> None:
    """Of a padded batch, at the positions of tokens; ids are those of the tokenizer of `transformers`."""
    model = loading(exported / "there", dtype=dtype).eval()
    network, ours, _, batch = inputs(exported)
    network = network.to(dtype)
    with torch.no_grad():
        expected = network(ours["source"], ours["mask"], ours["target"])
        logits = model(**batch).logits
    used = ours["target"] != PAD
    # Special tokens have other ids; the others follow in our order.
    assert logits.dtype == expected.dtype == dtype and int(used.sum()) > 6
    assert (logits[..., [3, 1, 2, 0]] - expected[..., ORDER])[used].abs().max() < tolerance
    assert (logits[..., 4:] - expected[..., 4:])[used].abs().max() < tolerance


def test_the_cache_changes_nothing(exported: Path, loading: Callable[..., Any]) -> None:
    model = loading(exported / "there", dtype=torch.float64).eval()
    batch = inputs(exported)[3]
    with torch.no_grad():
        expected = model(**batch).logits
        tokens, cache, parts = batch.pop("decoder_input_ids"), None, []
        for piece in (tokens[:, :2], *tokens[:, 2:].split(1, dim=1)):
            out = model(**batch, decoder_input_ids=piece, past_key_values=cache, use_cache=True)
            cache, parts = out.past_key_values, [*parts, out.logits]
    assert (torch.cat(parts, dim=1) - expected).abs().max() < 1e-12
    for width in (1, 4):
        found = [
            model.generate(**batch, num_beams=width, max_new_tokens=12, num_return_sequences=width, use_cache=cached)
            for cached in (True, False)
        ]
        assert torch.equal(*found) and found[0].size(1) > 3


def test_a_loaded_model_can_be_trained_and_saved(exported: Path, loading: Callable[..., Any], tmp_path: Path) -> None:
    model = loading(exported / "there").train()
    batch = inputs(exported)[3]
    labels = torch.cat([batch["decoder_input_ids"][:, 1:], torch.zeros(3, 1, dtype=torch.long)], dim=1)
    labels = labels.masked_fill(labels == 2, -100)
    model.eval()
    logits = model(**batch).logits
    loss = model(batch["input_ids"], batch["attention_mask"], labels=labels).loss
    assert torch.allclose(loss, F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.save_pretrained(tmp_path / "saved")
    saved = loading(tmp_path / "saved").state_dict()
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in model.state_dict().items())


def test_the_code_in_the_readme_runs(
    exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loading: Callable[..., Any]
) -> None:
    page = (exported / "there" / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    monkeypatch.chdir(exported / "there")
    exec(code.replace("max_new_tokens=200", "max_new_tokens=9"), {})
    assert capsys.readouterr().out.endswith("\n")
    assert "`trust_remote_code=True` runs `modeling_dragoman.py`" in page


def test_the_folder(exported: Path) -> None:
    folder = exported / "there"
    assert {path.name for path in folder.iterdir()} - {"target_vocab.json"} == {
        "config.json", "generation_config.json", "model.safetensors", "modeling_dragoman.py", "source.spm",
        "target.spm", "vocab.json", "tokenizer_config.json", "README.md", "export.json",
    }  # fmt: skip
    ours = Path(huggingface.__file__).parent / "modeling_dragoman.py"
    assert (folder / "modeling_dragoman.py").read_bytes() == ours.read_bytes()
    facts = json.loads((folder / "export.json").read_text())
    assert facts["format"] == "huggingface" and facts["parity"]["greedy"]["different"] == 0
    search = json.loads((folder / "generation_config.json").read_text())
    assert search["num_beams"] == 4 and [2] in search["bad_words_ids"]


def test_the_code_needs_nothing_but_torch_and_transformers() -> None:
    tree = ast.parse((Path(huggingface.__file__).parent / "modeling_dragoman.py").read_text())
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    standard = {"math", "collections.abc", "typing"}
    assert {name.partition(".")[0] for name in found - standard} == {"torch", "transformers"}


def test_a_sequence_beyond_the_learned_positions_is_refused(tmp_path: Path, loading: Callable[..., Any]) -> None:
    lines = write_lines(tmp_path / "lines.txt", ["one two"])
    export(model_of(tmp_path, "learned"), tmp_path / "out", "huggingface", check=lines)
    with pytest.raises(ValueError, match="271 tokens, but the model has 270 positions"):
        loading(tmp_path / "out")(torch.full((1, 271), 5), decoder_input_ids=torch.tensor([[2]]))


# ------------------------------------------------------------------------------------------------------------ refusals


def test_all_reasons_of_a_refusal_are_listed(cli: Cli, tmp_path: Path) -> None:
    for settings, keys in (
        ({"norm": {"kind": "batch"}, "position": {"kind": "shaw"}, "order": "pre"}, ("norm.kind", "position.kind")),
        (
            {"norm": {"kind": "batch"}, "position": {"kind": "recurrent"}, "decoder_self": "ssru",
             "attention": {"kind": "linear"}},
            ("norm.kind", "position.kind", "decoder_self", "attention.kind"),
        ),
    ):  # fmt: skip
        document = small_document(tmp_path / "data")
        document["model"] |= settings
        config, tokenizer = parse_config(document), tiny_tokenizer()
        reasons = huggingface.unsupported(config, tokenizer)
        assert [reason.partition(" = ")[0] for reason in reasons if " = " in reason] == sorted(
            keys, key=("norm.kind", "position.kind", "attention.kind", "decoder_self").index
        )
    save_model(tmp_path / "model", config, tokenizer, unique_tensors(build_for(config, tokenizer)), {"step": 0})
    code, out, err = cli(
        "export", tmp_path / "model", tmp_path / "out", "--format", "huggingface", "--quantization", "int8"
    )
    assert code == 2 and out == b"" and not (tmp_path / "out").exists()
    for words in ("'int8'; accepted for huggingface: float32", "norm.kind = 'batch'", "decoder_self = 'ssru'"):
        assert words in err
    with pytest.raises(UsageError, match="supports none, sinusoidal, learned, rotary, t5, alibi"):
        export(tmp_path / "model", tmp_path / "out", "huggingface")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("v1.0, one layer, wide heads", "with the sentinels of T5"), ("byt5, one layer", "with bytes.json")],
)
def test_tokenizers_that_marian_lacks_are_refused(name: str, reason: str, tmp_path: Path) -> None:
    t5_checkpoint(tmp_path / "checkpoint", name)
    import_model(tmp_path / "checkpoint", tmp_path / "model")
    with pytest.raises(UsageError, match=f"transformers does not support this model:\n  - tokenizer {reason}"):
        export(tmp_path / "model", tmp_path / "out", "huggingface")
    assert not (tmp_path / "out").exists()


MUTANTS: dict[str, tuple[str, str, str]] = {
    "turned the other way": ("as multi30k", "[a * cos - b * sin, a * sin +", "[a * cos + b * sin, -a * sin +"),
    "seen future": ("as multi30k", "masked_fill(distance > 0, -", "masked_fill(distance > 9, -"),
    "norm after the sub-layer": ("as multi30k", 'if self.order == "pre":', 'if self.order == "no":'),
    "gate swapped": ("as multi30k", "self.activation(hidden) * gate[0] if", "self.activation(gate[0]) * hidden if"),
    "cache of another layer": ("as multi30k", "cross_attention_cache.layers[layer]", "cross_attention_cache.layers[0]"),
    "angles not scaled": ("rotary, divided", 'rates = rates / scaling["factor"]\n    elif', "pass\n    elif"),
    "other groups of heads": (
        "t5, grouped heads",
        ".repeat_interleave(q.size(1) // x.size(1), dim=1)",
        ".repeat(1, q.size(1) // x.size(1), 1, 1)",
    ),
    "later keys like earlier ones": ("t5, grouped heads", "(distance > 0) * buckets", "(distance > 0) * 0"),
    "nearer is worse": ("alibi, one key head", "* -distance.abs()", "* distance.abs()"),
    "other epsilon": ("learned", "eps=config.norm_eps) if used", "eps=1.0) if used"),
}
"""Mutants of the exported code: the configuration that detects them, the text replaced, and its replacement."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_code_leaves_no_folder(mutant: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, before, after = MUTANTS[mutant]
    source = (Path(huggingface.__file__).parent / "modeling_dragoman.py").read_text()
    assert source.count(before) == 1
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mutated_dragoman.py").write_text(source.replace(before, after))
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.delitem(sys.modules, "mutated_dragoman", raising=False)
    import mutated_dragoman  # type: ignore[import-not-found]

    monkeypatch.setitem(sys.modules, "dragoman.formats.modeling_dragoman", mutated_dragoman)
    lines = write_lines(tmp_path / "lines.txt", [source for source, _ in digit_pairs(4, seed=8)])
    model = model_of(tmp_path, name)
    code, out, err = cli("export", model, tmp_path / "out", "--format", "huggingface", "--check", lines)
    assert (code, out) == (1, b"") and "parity not met, nothing was written" in err
    assert {path.name for path in tmp_path.iterdir()} <= {"code", "data", "lines.txt", "model"}


@pytest.mark.parametrize(
    ("name", "function", "weight"),
    [
        ("tied", "_tensors", "model.decoder.layers.0.encoder_attn.out_proj.weight"),
        ("as multi30k", "reverted", "encoder.layers.0.ffn.outer.weight"),
    ],
    ids=["marianmt", "custom"],
)
def test_a_wrong_weight_leaves_no_folder(
    name: str, function: str, weight: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = write_lines(tmp_path / "lines.txt", ["one two", "three"])
    check_wrong_weight(model_of(tmp_path, name), "huggingface", (huggingface, function), weight, lines, monkeypatch)
