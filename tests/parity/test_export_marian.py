"""P9: models exported to MarianMT compute the same in `transformers`, and their import is the identity."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.formats import huggingface
from dragoman.formats.export import export
from dragoman.formats.importing.importer import import_model
from dragoman.models.model_folder import load_network, unique_tensors
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import BOS, EOS, PAD, Tokenizer
from imported_checks import check_wrong_weight
from random_models import random_model
from small_run import digit_pairs, write_lines
from transformers_checkpoints import MARIAN_LINES, marian_checkpoint

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "tied": {"d_model": 18, "d_ff": 23, "n_heads": 3, "encoder_layers": 2, "activation": "silu"},
    "one layer, target tied": {"d_model": 10, "d_ff": 7, "n_heads": 5, "tie": "target", "scale_embeddings": False},
    "untied": {"d_model": 14, "n_heads": 2, "decoder_layers": 3, "tie": "none", "output_bias": True},
    "two vocabularies": {"d_model": 16, "n_heads": 4, "activation": "gelu"},
}  # fmt: skip


def model_of(folder: Path, name: str) -> Path:
    return random_model(folder, CONFIGURATIONS[name], shared=name != "two vocabularies")


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, its export `there` and the import `back` of that."""
    folder = tmp_path_factory.mktemp("export")
    lines = write_lines(folder / "lines.txt", [source for source, _ in digit_pairs(6, seed=8)])
    done = export(model_of(folder, request.param), folder / "there", "huggingface", check=lines)
    assert done.met and done.parity.largest < 1e-5 and done.parity.greedy.same == 6
    assert done.tokenizer is not None and done.tokenizer.lines > 15
    assert not (folder / "there" / "modeling_dragoman.py").exists()
    import_model(folder / "there", folder / "back", check=lines)
    return folder


def test_the_import_of_an_export_is_the_identity(exported: Path) -> None:
    before, after = (load_network(exported / name) for name in ("model", "back"))
    theirs = unique_tensors(after[0])
    for name, tensor in unique_tensors(before[0]).items():
        assert torch.equal(tensor, theirs.pop(name)), name
    assert all(name == "output.bias" and not tensor.any() for name, tensor in theirs.items())
    ours, read = before[1], after[1]
    assert isinstance(ours, Tokenizer) and isinstance(read, Tokenizer)
    for source, target in [*digit_pairs(20, seed=2), ("Größe, 日本", "x")]:
        assert ours.encode_source(source) == read.encode_source(source)
        assert ours.encode_target(target) == read.encode_target(target)
    assert before[2].search.beam == after[2].search.beam and before[2].search.alpha == after[2].search.alpha


def test_logits_are_equal(exported: Path) -> None:
    """Compared with the package directly, with ids of its own tokenizer."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(exported / "there")
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(exported / "there")
    network, tokenizer, _ = load_network(exported / "model")
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    source, target = digit_pairs(1, seed=5)[0]
    given = theirs(source, text_target=target, return_tensors="pt")
    start = torch.tensor([[model.config.decoder_start_token_id, *given.labels[0, :-1].tolist()]])
    with torch.no_grad():
        logits = model(input_ids=given.input_ids, decoder_input_ids=start).logits[0]
        tokens = torch.tensor([[BOS, *tokenizer.encode_target(target)[:-1]]])
        ours = network(torch.tensor([tokenizer.encode_source(source)]), None, tokens)[0]
    # Special tokens have other ids; the others follow in our order.
    assert (logits[:, [3, 1, 2, 0]] - ours[:, [PAD, 1, BOS, EOS]]).abs().max() < 1e-5
    assert (logits[:, 4:] - ours[:, 4:]).abs().max() < 1e-5


def test_the_code_in_the_readme_runs(
    exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (exported / "there" / "README.md").read_text(), flags=re.S)
    monkeypatch.chdir(exported / "there")
    exec(code.replace("max_new_tokens=200", "max_new_tokens=9"), {})
    assert capsys.readouterr().out.endswith("\n")
    facts = json.loads((exported / "there" / "export.json").read_text())
    assert facts["format"] == "huggingface" and facts["tokenizer"]["source"] == 0 and facts["transformers"]


@pytest.mark.parametrize("name", ["tied", "two vocabularies"])
def test_the_export_of_an_import_has_the_logits_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, MarianMTModel

    lines = write_lines(tmp_path / "lines.txt", [line for line in MARIAN_LINES if line][:4])
    first = marian_checkpoint(tmp_path / "first", name)
    import_model(first, tmp_path / "model", check=lines)
    export(tmp_path / "model", tmp_path / "second", "huggingface", check=lines)
    found = []
    for folder in (first, tmp_path / "second"):
        model: Any = MarianMTModel.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        given = tokenizer("A dog runs.", text_target="ein hund läuft", return_tensors="pt")
        start = torch.tensor([[model.config.decoder_start_token_id, *given.labels[0, :-1].tolist()]])
        with torch.no_grad():
            logits = model(input_ids=given.input_ids, decoder_input_ids=start).logits[0]
        names = getattr(tokenizer, "target_encoder", None) or tokenizer.encoder
        found.append({piece: logits[:, i] for piece, i in names.items()})
    assert found[0].keys() == found[1].keys()
    # generation of "tied" excludes the start token from the softmax, so that its logit is not kept
    kept = [piece for piece in found[0] if piece != "<pad>"]
    assert max((found[0][piece] - found[1][piece]).abs().max() for piece in kept) < 1e-5
    import_model(tmp_path / "second", tmp_path / "back", check=lines)
    before, after = (unique_tensors(load_network(tmp_path / each)[0]) for each in ("model", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[each], after[each]) for each in before)


def test_a_wrong_weight_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = write_lines(tmp_path / "lines.txt", ["one two", "three"])
    weight = "model.decoder.layers.0.encoder_attn.out_proj.weight"
    check_wrong_weight(model_of(tmp_path, "tied"), "huggingface", (huggingface, "_tensors"), weight, lines, monkeypatch)
