"""P9: onnxruntime computes the same as Dragoman for every kind of Transformer that the ONNX export supports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.config import Config, parse_config
from dragoman.decoding import ModelStepper, SearchSettings, generate
from dragoman.errors import DragomanError
from dragoman.formats import onnx
from dragoman.formats.export import export
from dragoman.formats.importing.importer import import_model
from dragoman.formats.onnx import OnnxRuntime
from dragoman.formats.parity import Parity, ParityCase, compare_models
from dragoman.formats.target import ExportSource
from dragoman.models.model_folder import load_network, save_model, unique_tensors
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import BOS, EOS, Tokenizer
from every_kind import TRANSFORMERS, TRANSLATORS, built, covering
from random_models import random_rows
from small_run import Cli, digit_pairs, small_document, write_lines
from tiny_translator import tiny_tokenizer
from transformers_checkpoints import MARIAN_LINES, marian_checkpoint

for package in ("onnx", "onnxruntime"):
    pytest.importorskip(package, reason=f"needs the package {package}: pip install 'dragoman[formats]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporter, about its own code

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "model_v1"
VOCAB = 37
REFUSED = {"recurrent over embeddings", "recurrent positions", "gemma 3"}
KINDS = [name for name in TRANSFORMERS if name not in REFUSED]
TOKENIZER = tiny_tokenizer()


def config_of(name: str) -> Config:
    document = small_document(Path()) | {"model": TRANSLATORS[name]}
    document["data"]["filter"] = {"max_tokens": 30}  # fewer than the learned positions
    return parse_config(document)


def parity(name: str, folder: Path) -> Parity:
    """Parity of a small model with random weights."""
    model: Model = built(TRANSLATORS[name], VOCAB).float()
    subject = ExportSource(model, TOKENIZER, config_of(name))
    assert onnx.unsupported(subject.config, TOKENIZER) == []
    onnx.write(subject, folder, "float32")
    return compare_models(model, onnx.runtime(subject, folder, "float32"), random_rows(8, VOCAB), width=3)


@pytest.mark.parametrize("name", covering(KINDS))
def test_transformers(name: str, tmp_path: Path) -> None:
    report = parity(name, tmp_path)
    assert report.met, report.lines()
    assert report.largest < 5e-4 and report.greedy.same >= 7 and report.beam.same >= 7


@pytest.mark.parametrize("name", [*sorted(REFUSED), "lstm", "convolutional"])
def test_unsupported_models_are_refused(name: str) -> None:
    reasons = onnx.unsupported(config_of(name), TOKENIZER)
    assert reasons and all("the ONNX export supports" in reason for reason in reasons)


def script(folder: Path) -> str:
    """The code in the README of an export."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.S)
    return str(code)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a trained model."""
    where = tmp_path_factory.mktemp("onnx")
    lines = write_lines(where / "lines.txt", [source for source, _ in digit_pairs(20, seed=8)])
    done = export(GOLDEN, where / "out", "onnx", check=lines)
    assert done.met and done.parity.cases == 20 and done.tokenizer is None
    return where / "out"


def test_the_graphs_have_dynamic_sizes_and_a_cache(folder: Path) -> None:
    network = load_network(GOLDEN)[0]
    runtime = OnnxRuntime(folder, "float32")
    shapes = {each.name: each.shape for each in runtime.decoder.get_inputs()}
    assert shapes["token"] == ["batch"] and shapes["mask"] == ["batch", "source"]
    heads, size = shapes["keys_0"][1], shapes["keys_0"][3]
    assert shapes["keys_0"] == ["batch", heads, "past", size]
    assert shapes["cross_keys_0"] == ["batch", heads, "source", size]
    # one line, many lines of other lengths, and 40 positions, which is more than the example of the exporter
    for rows in ([[5, EOS]], [[6, 7, 8, 9, 10, EOS], [5, EOS], *[[7] * 20 + [EOS]] * 3]):
        for row in rows:
            ids = [*([7, 8, 9] * 13), EOS]
            with torch.no_grad():
                logits = network(torch.tensor([row]), None, torch.tensor([[BOS, *ids[:-1]]]))
            ours = logits.log_softmax(-1)[0].gather(1, torch.tensor(ids)[:, None])[:, 0].numpy()
            assert np.abs(np.array(runtime.score(ParityCase(row, []), ids)) - ours).max() < 1e-4
        single = [runtime.search([ParityCase(row, [])], 1, 0, 12)[0] for row in rows]
        assert runtime.search([ParityCase(row, []) for row in rows], 1, 0, 12) == single


def test_the_code_in_the_readme_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = script(folder)
    assert set(re.findall(r"^import (\w+)", code, flags=re.M)) == {"numpy", "onnxruntime", "sentencepiece"}
    monkeypatch.chdir(folder)
    network, tokenizer, _ = load_network(GOLDEN)
    assert isinstance(network, Model) and isinstance(tokenizer, Tokenizer)
    for line in ("one two three", "four five"):
        exec(code.replace("Two dogs run across a field.", line), {})
        source = torch.tensor([tokenizer.encode_source(line)])
        settings = SearchSettings(beam=1, alpha=0, max_extra=100)
        ((ours,),) = generate(ModelStepper(network), source, torch.ones_like(source).bool(), settings)
        text = tokenizer.decode_target(ours.tokens)
        assert capsys.readouterr().out == f"{text}\n" and text
    facts = json.loads((folder / "export.json").read_text())
    assert facts["format"] == "onnx" and facts["onnxruntime"] and facts["parity"]["greedy"]["same"] == 20


def test_int8_is_smaller_and_reports_the_effect(cli: Cli, folder: Path, tmp_path: Path) -> None:
    lines = folder.parent / "lines.txt"
    code, out, err = cli(
        "export", GOLDEN, tmp_path / "out", "--format", "onnx", "--quantization", "int8", "--check", lines
    )
    assert (code, err) == (0, "") and b"effect of quantization:" in out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"encoder.onnx", "decoder.onnx", "tokenizer.model", "README.md", "export.json"}
    for name in ("encoder.onnx", "decoder.onnx"):
        assert (tmp_path / "out" / name).stat().st_size < (folder / name).stat().st_size
    facts = json.loads((tmp_path / "out" / "export.json").read_text())
    assert facts["quantized"]["mean"] > 10 * facts["parity"]["mean"]


def test_without_parity_there_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = onnx.exportable

    def wrong(*given: Any) -> Any:
        copy = original(*given)
        copy.decoder.layers[0].cross_attn.out.weight.mul_(1.05)
        return copy

    monkeypatch.setattr(onnx, "exportable", wrong)
    lines = write_lines(tmp_path / "lines.txt", ["one two", "three"])
    with pytest.raises(DragomanError, match="parity not met, nothing was written"):
        export(GOLDEN, tmp_path / "out", "onnx", check=lines)
    assert [path.name for path in tmp_path.iterdir()] == ["lines.txt"]


def test_an_imported_model_has_the_ids_of_its_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokenizer has a list of pieces, and the script uses it."""
    pytest.importorskip("transformers")
    lines = write_lines(tmp_path / "lines.txt", [line for line in MARIAN_LINES if line][:3])
    import_model(marian_checkpoint(tmp_path / "source", "one layer, unscaled"), tmp_path / "model", check=lines)
    network, tokenizer, config = load_network(tmp_path / "model")
    assert isinstance(tokenizer, Tokenizer) and isinstance(network.output.bias, torch.Tensor)
    with torch.no_grad():
        network.output.bias[EOS] -= 20  # the output does not end before its limit
    save_model(tmp_path / "long", config, tokenizer, unique_tensors(network), {"step": 0})
    export(tmp_path / "long", tmp_path / "out", "onnx", check=lines)
    monkeypatch.chdir(tmp_path / "out")
    runtime = OnnxRuntime(tmp_path / "out", "float32")
    texts = []
    for line in [line for line in MARIAN_LINES if line and not line.startswith(">>")]:
        exec(script(tmp_path / "out").replace("Two dogs run across a field.", line).replace("< 200", "< 13"), {})
        ((ids,),) = runtime.search([ParityCase(tokenizer.encode_source(line), [])], 1, 0, 12)
        texts.append(tokenizer.decode_target(ids))
        assert capsys.readouterr().out.splitlines()[-1] == texts[-1]
    assert all(texts)
