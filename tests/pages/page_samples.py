"""Data of pages for several tests: explanations of untrained models, and the report of a demo."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from dragoman.config import parse_config
from dragoman.interpret.explain.cases import LoadedModel
from dragoman.interpret.explain.explain import Explanation, explain
from dragoman.interpret.heads.atlas import Atlas, AtlasExample, atlas, examples, removal_costs
from dragoman.interpret.heads.probes import translation_probe
from dragoman.models.build import build_model
from dragoman.pages.report import AttentionPicture, DemoReport, Sample
from dragoman.tokenizers import LabelVocabulary, Tokenizer, Vocabulary
from small_run import digit_pairs
from tiny_translator import tiny_tokenizer, tiny_translator

SIZES: dict[str, Any] = {"d_model": 24, "d_ff": 40, "n_heads": 3, "dropout": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"architecture": "transformer", **SIZES, "encoder_layers": 2, "decoder_layers": 3},
    "lstm": {"architecture": "lstm", "d_model": 12, "encoder_layers": 1, "decoder_layers": 2},
    "decoder-only": {"architecture": "decoder_only", **SIZES, "n_layers": 2},
    "image": {"architecture": "vision", **SIZES, "n_layers": 2, "image_size": 6, "patch": 2},
    "recurrent": {"architecture": "recurrent_lm", "d_model": 12},
    "class": {"architecture": "recurrent_encoder", "d_model": 12, "cell": {"kind": "gru"}, "pooling": "last"},
}
DATA: dict[str, dict[str, Any]] = {
    "decoder-only": {"kind": "text", "train": ["a"], "max_tokens": 60},
    "image": {"kind": "images", "dataset": "digits"},
    "recurrent": {"kind": "text", "train": ["a"], "max_tokens": 60},
    "class": {"kind": "labelled", "train": ["a"], "max_tokens": 60},
}


def tiny_atlas() -> tuple[Atlas, list[AtlasExample]]:
    """The heads of an untrained translator, with costs and twelve lines."""
    translator = tiny_translator()
    assert isinstance(translator.tokenizer, Tokenizer)
    probe = translation_probe(translator, *map(list, zip(*digit_pairs(12), strict=True)), None)
    found = removal_costs(translator.model, probe, atlas(translator.model, probe))
    return found, examples(translator.model, probe)


def loaded(kind: str, **changes: Any) -> LoadedModel:
    """An untrained model."""
    data = DATA.get(kind, {"train": [{"source": "a", "target": "b"}], "filter": {"max_tokens": 80}})
    config = parse_config({"data": data, "model": MODELS[kind] | changes, "search": {"beam": 3, "max_extra": 4}})
    vocabulary: Vocabulary = tiny_tokenizer()
    if kind == "image":
        vocabulary = LabelVocabulary([str(digit) for digit in range(10)], patch_numbers=4)
    elif kind == "class":
        vocabulary = LabelVocabulary(["good", "bad"], tiny_tokenizer())
    network = build_model(config.model, vocabulary.source_size, vocabulary.target_size, seed=5).eval()
    return network, vocabulary, config


@cache
def explained(kind: str) -> Explanation:
    return explain(loaded(kind), np.linspace(0, 1, 36).reshape(6, 6) if kind == "image" else "one two seven")


SOURCE, TARGET = ["▁twenty", "-", "four", "</s>"], ["▁vier", "und", "zwanzig", "</s>"]


def head(crossing: float) -> list[list[float]]:
    """Weights (T, S) of a head that looks at what it translates, and so crosses, more or less."""
    rest = (1 - crossing) / 3
    looks = (2, 1, 0, 3)
    return [[crossing if s == look else rest for s in range(4)] for look in looks]


def sample_report() -> DemoReport:
    """The report of a demo that ran for 11 steps, with 30 samples of which 10 are wrong."""
    step = {"learning_rate": 1e-4, "tokens_per_second": 9e3, "exact_match": 0.5}
    samples = [
        Sample(f"text {i}", "Antwort", "Antwort" if i % 3 else "Irrtum", bool(i % 3), -i / 10) for i in range(30)
    ]
    layers = [[head(0.4), head(0.5)], [head(0.6), head(0.95)], [head(0.3), head(0.35)]]
    return DemoReport(
        target="German", target_code="de", word_order="The unit precedes the ten.", title="Numbers in words",
        config={"model": {"architecture": "transformer", "d_model": 64}, "train": {"budget": "3 min"}},
        parameters=2_500_000, seconds=200.0, device="cpu",
        history=[step | {"step": s, "loss": 6 / s, "seconds": s / 2} for s in range(1, 12)], exact_match=2 / 3,
        test_items=30, samples=samples,
        attention=AttentionPicture(SOURCE, TARGET, [torch.tensor(heads) for heads in layers]),
        chinese={"title": "数字的写法", "target": "德语", "word_order": "个位在十位之前。"},
    )  # fmt: skip
