"""P9: CTranslate2 computes the same as Dragoman for every supported kind of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.config import ModelConfig
from dragoman.formats.parity import ParityCase, ParityCases, compare_models
from dragoman.models.seq2seq import Model
from every_kind import BLOCK, LABELLERS, TRANSFORMERS, TRANSLATORS, built, model_config
from every_kind import LANGUAGE_MODELS as EVERY_LANGUAGE_MODEL
from random_models import random_rows

pytest.importorskip("ctranslate2", reason="needs the package ctranslate2: pip install 'dragoman[formats]'")

from dragoman.formats.ctranslate2 import CTranslate2Runtime, specification, unsupported_model, write_specification

VOCAB = 37
PIECES = ["<pad>", "<unk>", "<s>", "</s>", *(f"w{i}" for i in range(4, VOCAB))]
REFUSED = {
    "batch norm", "recurrent over embeddings", "recurrent positions", "alibi",
    "ssru", "ssru pre-norm", "linear", "linear relu", "linear softmax", "linear rotary", "small keys", "large keys",
    "narrow values", "gemma 3",
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "gelu": {"activation": "gelu", "gated": True},
    "gelu tanh": {"activation": "gelu_tanh"},
    "sigmoid": {"activation": "sigmoid", "gated": True, "bias": False},
    "other eps": {"norm": {"kind": "layer", "eps": 0.03}},
    "other eps, rms": {"norm": {"kind": "rms", "eps": 0.03}, "order": "pre"},
    "odd vocabularies": {"tie": "none"},
    "t5, grouped": {"position": {"kind": "t5", "buckets": 8, "max_distance": 12}, "n_heads": 6, "n_kv_heads": 2},
    "shaw, multi-query": {"position": {"kind": "shaw", "clip": 2}, "n_kv_heads": 1},
}
LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "modern": {
        "order": "pre", "norm": {"kind": "rms"}, "position": {"kind": "rotary"}, "activation": "silu",
        "gated": True, "bias": False, "n_kv_heads": 1,
    },
    "learned": {"position": {"kind": "learned", "max_len": 40}, "tie": "none"},
    "no positions": {"position": {"kind": "none"}},
    "shaw": {"position": {"kind": "shaw", "clip": 3}},
    "alibi": {"position": {"kind": "alibi"}, "n_heads": 6},
}  # fmt: skip


def check_parity(document: dict[str, Any], folder: Path, cases: ParityCases) -> None:
    """For a small model with random weights."""
    config: ModelConfig = model_config(document)
    model: Model = built(document, VOCAB).float()
    write_specification(specification(model, config, PIECES, PIECES), folder, "float32")
    report = compare_models(model, CTranslate2Runtime(folder, "float32", PIECES, PIECES), cases, width=3)
    assert report.met, report.lines()
    assert report.largest < 2e-4  # of log-probabilities around -4, in float32
    assert report.greedy.same >= 11 and report.beam.same >= 11


def prompts(count: int = 12) -> ParityCases:
    rng = torch.Generator().manual_seed(4)
    rows = [torch.randint(4, VOCAB, (n % 3 + 1,), generator=rng).tolist() for n in range(count)]
    return ParityCases([ParityCase([], row) for row in rows], "rows", 9)


KINDS = {name: changes for name, changes in (TRANSFORMERS | VARIANTS).items() if name not in REFUSED}


@pytest.mark.parametrize("name", KINDS)
def test_transformers(name: str, tmp_path: Path) -> None:
    check_parity({**TRANSLATORS["paper"], **KINDS[name]}, tmp_path / "out", random_rows(12, VOCAB))


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_language_models(name: str, tmp_path: Path) -> None:
    document = {"architecture": "decoder_only", **BLOCK, "n_layers": 2, **LANGUAGE_MODELS[name]}
    check_parity(document, tmp_path / "out", prompts())


@pytest.mark.parametrize("name", [*TRANSLATORS, "lstm language model", "lstm tags"])
def test_unsupported_models_are_refused(name: str) -> None:
    document = (TRANSLATORS | EVERY_LANGUAGE_MODEL | LABELLERS)[name]
    reasons = unsupported_model(model_config(document))
    supported = name in TRANSFORMERS and name not in REFUSED
    assert (reasons == []) == supported
    if name == "linear rotary":
        assert reasons == ["attention.kind = 'linear'; CTranslate2 supports softmax"]
    if name == "small keys":
        assert reasons == ["d_key = 4; CTranslate2 supports the width of values, 6"]
        assert unsupported_model(model_config(document | {"d_key": 6})) == []


def test_all_reasons_are_listed() -> None:
    document = {**TRANSLATORS["linear"], "norm": {"kind": "batch"}, "position": {"kind": "recurrent"}}
    found = "\n".join(unsupported_model(model_config(document)))
    assert all(f"{key} = " in found for key in ("position.kind", "norm.kind", "attention.kind"))
