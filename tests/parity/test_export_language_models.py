"""P9: language models exported to GPT-2 and Llama compute the same in `transformers`; their import is the identity."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.config import parse_config
from dragoman.errors import UsageError
from dragoman.formats import huggingface, huggingface_causal
from dragoman.formats.export import export
from dragoman.formats.importing.importer import import_model
from dragoman.models.model_folder import load_network, save_model, unique_tensors
from dragoman.tokenizers import BOS, EOS
from imported_checks import check_wrong_weight, loaded
from json_tokenizers import TEXTS
from small_run import write_lines
from tiny_translator import tiny_tokenizer
from transformers_checkpoints import language_checkpoint

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its own use
NAMES = ["gpt2", "gpt2, padding, three layers", "llama, biases, bytes", "llama, 3.1"]


def lines_of(folder: Path) -> Path:
    return write_lines(folder / "lines.txt", [line for text in TEXTS for line in text.split("\n") if line.strip()][:2])


@pytest.fixture(scope="module", params=NAMES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `first`, a checkpoint; `model`, its import; `there`, the export; `back`, the import of that."""
    folder = tmp_path_factory.mktemp("export")
    lines = lines_of(folder)
    import_model(language_checkpoint(folder / "first", request.param), folder / "model", lines)
    done = export(folder / "model", folder / "there", "huggingface", check=lines)
    assert done.met and done.parity.largest < 2e-5 and done.parity.greedy.same == done.parity.cases
    assert done.tokenizer is not None and done.tokenizer.lines > 15
    import_model(folder / "there", folder / "back", lines)
    return folder


def test_the_import_of_an_export_is_the_identity(exported: Path) -> None:
    (one, ours), (two, read) = (loaded(exported / name) for name in ("model", "back"))
    before, after = unique_tensors(one), unique_tensors(two)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    for text in TEXTS:
        ids = ours.encode_target(text)
        assert ids == read.encode_target(text) and ours.decode_target(ids) == read.decode_target(ids)


def test_transformers_has_the_logits_and_tokens_of_the_checkpoint(exported: Path) -> None:
    """Called as a user would, with the tokenizer of the folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    first, second = (AutoModelForCausalLM.from_pretrained(exported / name) for name in ("first", "there"))
    theirs, written = (AutoTokenizer.from_pretrained(exported / name) for name in ("first", "there"))
    for text in ("A dog", "two people\n", "\N{GRINNING FACE} don't"):
        ids = theirs(theirs.bos_token + text, return_tensors="pt", add_special_tokens=False).input_ids
        assert torch.equal(
            ids, written(written.bos_token + text, return_tensors="pt", add_special_tokens=False).input_ids
        )
        with torch.no_grad():
            assert (first(ids).logits - second(ids).logits).abs().max() < 1e-5
        for beams in (1, 4):
            settings: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
            assert torch.equal(first.generate(ids, **settings), second.generate(ids, **settings))


def test_the_code_in_the_readme_runs(
    exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (exported / "there" / "README.md").read_text(), flags=re.S)
    monkeypatch.chdir(exported / "there")
    exec(code, {})
    assert "To be, or not" in capsys.readouterr().out
    assert json.loads((exported / "there" / "export.json").read_text())["format"] == "huggingface"


def changed(folder: Path, name: str, value: float, row: int) -> Path:
    """The import of GPT-2 with a row of a tensor changed."""
    import_model(language_checkpoint(folder / "first", "gpt2"), folder / "model", lines_of(folder))
    network, tokenizer, config = load_network(folder / "model")
    with torch.no_grad():
        network.get_parameter(name)[row] += value
    save_model(folder / "other", config, tokenizer, unique_tensors(network), {"step": 0})
    return folder / "other"


def test_begin_and_end_that_differ_are_two_rows(tmp_path: Path) -> None:
    """As after fine-tuning: the matrices are no longer tied."""
    model = changed(tmp_path, "embedding.weight", 0.3, BOS)
    export(model, tmp_path / "there", "huggingface", check=lines_of(tmp_path))
    assert json.loads((tmp_path / "there" / "config.json").read_text())["tie_word_embeddings"] is False
    import_model(tmp_path / "there", tmp_path / "back", lines_of(tmp_path))
    (one, _), (two, _) = loaded(model), loaded(tmp_path / "back")
    tokens = torch.tensor([[BOS, 9, 17, EOS + 4]])
    with torch.no_grad():
        first, second = (each(torch.zeros(1, 0, dtype=torch.long), None, tokens)[0] for each in (one, two))
    kept = [EOS, *range(EOS + 1, first.size(1))]
    assert (first - second)[:, kept].abs().max() < 1e-5


def test_an_output_bias_is_refused(tmp_path: Path) -> None:
    model = changed(tmp_path, "output.bias", 0.5, 20)
    with pytest.raises(UsageError, match="the model has an output bias"):
        export(model, tmp_path / "out", "huggingface")
    assert not (tmp_path / "out").exists()


def test_a_wrong_weight_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_model(language_checkpoint(tmp_path / "first", "gpt2"), tmp_path / "model", lines_of(tmp_path))
    place, weight = (huggingface_causal, "tensors"), "transformer.h.1.mlp.c_fc.weight"
    check_wrong_weight(tmp_path / "model", "huggingface", place, weight, lines_of(tmp_path), monkeypatch)


def test_all_reasons_of_a_refusal_are_listed() -> None:
    document: dict[str, Any] = {
        "data": {"kind": "text", "train": ["a"]},
        "model": {
            "architecture": "decoder_only", "d_model": 16, "d_ff": 8, "n_heads": 2, "n_layers": 1, "d_key": 4,
            "position": {"kind": "rotary", "fraction": 0.5},
        },
    }  # fmt: skip
    reasons = "\n".join(huggingface.unsupported(parse_config(document), tiny_tokenizer()))
    for key in ("order", "norm.kind", "gated", "position.fraction", "d_key", "scale_embeddings"):
        assert f"{key} = " in reasons and "Llama" in reasons
    assert "supports tokenizer.json" in reasons
    document["model"]["position"] = {"kind": "alibi"}
    reasons = "\n".join(huggingface.unsupported(parse_config(document), tiny_tokenizer()))
    assert "position.kind = 'alibi'; GPT-2 of transformers supports learned, rotary" in reasons
