"""The native engine against the PyTorch backend for every kind of model: equal tokens, and scores to 1e-4.

The PyTorch search runs in float64, so that its results do not depend on the order of additions.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.data.batching import collate_source
from dragoman.decoding import Hypothesis, ModelStepper, SearchSettings, generate
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.library import NativeLibrary, Precision, load_native, unavailable_reason
from dragoman.decoding.native.pack import native_unsupported_reasons, pack
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import EOS
from every_kind import LANGUAGE_MODELS as EVERY_LANGUAGE_MODEL
from every_kind import TRANSLATORS, bigrams, built, ending, improving, model_config
from native_builds import BUILDS
from near_ties import assert_same_search, same_hypotheses

native = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")

VOCAB = 83
NOT_PACKED = {"recurrent over embeddings", "recurrent positions", "shaw", "batch norm"}
PACKED: dict[str, dict[str, Any]] = {
    name: document
    for name, document in TRANSLATORS.items()
    if document["architecture"] == "transformer" and name not in NOT_PACKED and "linear" not in name
} | {
    "gelu_tanh gated odd sizes": {
        "architecture": "transformer", "d_model": 70, "d_ff": 131, "n_heads": 5, "dropout": 0.0, "encoder_layers": 1,
        "decoder_layers": 2, "activation": "gelu_tanh", "gated": True, "position": {"kind": "learned", "max_len": 90},
    },
    "glu": {
        "architecture": "transformer", "d_model": 64, "d_ff": 64, "n_heads": 4, "dropout": 0.0, "encoder_layers": 2,
        "decoder_layers": 1, "activation": "sigmoid", "gated": True, "order": "pre", "norm": {"kind": "rms"},
    },
}  # fmt: skip
LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "decoder-only": {
        "architecture": "decoder_only", "d_model": 24, "d_ff": 40, "n_heads": 2, "n_layers": 2, "dropout": 0.0,
        "order": "pre", "position": {"kind": "rotary"}, "norm": {"kind": "rms"}, "scale_embeddings": False,
    },
    "decoder-only output bias": {
        "architecture": "decoder_only", "d_model": 24, "d_ff": 40, "n_heads": 2, "n_layers": 1, "dropout": 0.0,
        "output_bias": True, "tie": "none",
    },
    "decoder-only normalized embeddings": {
        "architecture": "decoder_only", "d_model": 24, "d_ff": 40, "n_heads": 2, "n_layers": 1, "dropout": 0.0,
        "normalize_embeddings": True,
    },
    "decoder-only learned": {
        "architecture": "decoder_only", "d_model": 24, "d_ff": 40, "n_heads": 4, "n_layers": 2, "dropout": 0.0,
        "order": "pre", "position": {"kind": "learned", "max_len": 90}, "activation": "gelu",
    },
}  # fmt: skip


def sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    lengths = [1, 9, 4, 17, 2, 6, 11, 3, 23, 5]
    return [[*torch.randint(4, VOCAB, (n,), generator=generator).tolist(), EOS] for n in lengths]


def pytorch_search(
    model: Model, rows: list[list[int]], settings: SearchSettings, prefixes: list[list[int]] | None = None
) -> list[list[Hypothesis]]:
    return generate(ModelStepper(exact(model)), *collate_source(rows), settings, prefixes)


def exact(model: Model) -> Model:
    """The same weights in float64."""
    return copy.deepcopy(model).double()


def native_search(
    model: Model,
    folder: Path,
    given: list[list[int]],
    settings: SearchSettings,
    prefixes: list[list[int]] | None = None,
    precision: Precision = "float32",
    **options: int,
) -> list[list[Hypothesis]]:
    engine = Engine(pack(model, folder / "packed.bin", precision, max_positions=90))
    begins = prefixes or [[]] * len(given)
    limits = [settings.limit(len(row), len(begin)) for row, begin in zip(given, begins, strict=True)]
    return engine.search(given, limits, settings, prefixes, **options)


def assert_same_as_pytorch(
    ours: list[list[Hypothesis]],
    model: Model,
    rows: list[list[int]],
    settings: SearchSettings,
    prefixes: list[list[int]] | None = None,
) -> None:
    """Compare with the search in PyTorch."""
    assert_same_search(ours, lambda exact: pytorch_search(exact, rows, settings, prefixes), model, same_hypotheses)


def of_kind(name: str, seed: int = 1) -> Model:
    return built((PACKED | LANGUAGE_MODELS)[name], VOCAB, seed=seed).float()


@native
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("beam", [1, 4])
def test_equal_tokens_and_scores(name: str, beam: int, tmp_path: Path) -> None:
    settings = SearchSettings(beam=beam, nbest=min(beam, 3), max_extra=12)
    rows = sources()
    assert_same_as_pytorch(native_search(of_kind(name), tmp_path, rows, settings), of_kind(name), rows, settings)


@native
@pytest.mark.parametrize("native_build", BUILDS, indirect=True)
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("kind", ["gelu_tanh gated odd sizes", "ssru"])
def test_every_build(native_build: NativeLibrary, precision: Precision, kind: str, tmp_path: Path) -> None:
    settings = SearchSettings(beam=3, nbest=2, max_extra=6)
    rows, model = sources(), of_kind(kind)
    found = native_search(model, tmp_path, rows, settings, precision=precision)
    assert native_search(model, tmp_path, rows[::-1], settings, precision=precision, threads=2) == found[::-1]
    if precision == "float32":
        assert_same_as_pytorch(found, model, rows, settings)


@native
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_decoder_only_model_continues_its_prompt(name: str, tmp_path: Path) -> None:
    settings = SearchSettings(beam=3, nbest=2, max_extra=9)
    rows: list[list[int]] = [[], [], []]
    prefixes = [[], [7, 9, 11, 20], [5]]
    model = of_kind(name)
    found = native_search(model, tmp_path, rows, settings, prefixes)
    nothing = torch.zeros(len(rows), 0, dtype=torch.long)
    assert_same_search(
        found, lambda exact: generate(ModelStepper(exact), nothing, None, settings, prefixes), model, same_hypotheses
    )


@native
@pytest.mark.parametrize(
    "settings",
    [
        SearchSettings(beam=1, max_extra=6, min_length=8),
        SearchSettings(beam=3, nbest=3, max_extra=6, min_length=5, no_repeat_ngram=2, alpha=0.0),
        SearchSettings(beam=2, max_extra=6, no_repeat_ngram=2, alpha=1.3),
        SearchSettings(beam=12, nbest=7, max_extra=3, shrink_beam=False),
        SearchSettings(beam=12, nbest=12, max_extra=6, no_repeat_ngram=2, min_length=3, shrink_beam=True),
        SearchSettings(beam=12, nbest=3, max_extra=6, no_repeat_ngram=2, min_length=3, beam_threshold=0.4),
        SearchSettings(beam=12, nbest=3, max_extra=6, no_repeat_ngram=2, min_length=3, recombine=2),
    ],
    ids=["min_length", "bigrams", "unigrams", "wide", "shrinking", "threshold", "recombining"],
)
def test_every_setting_of_the_search(settings: SearchSettings, tmp_path: Path) -> None:
    rows, model = sources(), of_kind("paper")
    assert_same_as_pytorch(native_search(model, tmp_path, rows, settings), model, rows, settings)


@native
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "asked",
    [
        {"nbest": 6, "shrink_beam": True},
        {"nbest": 1, "alpha": 2.0, "shrink_beam": True},
        {"nbest": 4, "no_repeat_ngram": 2, "shrink_beam": True},
        {"nbest": 1, "beam_threshold": 0.3},
        {"nbest": 3, "alpha": 2.0, "beam_threshold": 0.3},
        {"nbest": 2, "alpha": 2.0, "shrink_beam": True, "beam_threshold": 0.6},
        {"nbest": 1, "recombine": 1},
        {"nbest": 3, "alpha": 2.0, "shrink_beam": True, "recombine": 2},
        {"nbest": 2, "alpha": 2.0, "beam_threshold": 0.6, "recombine": 1},
        {"nbest": 2, "alpha": 2.0, "beam_threshold": 0.6, "recombine": 1, "early_end": "off"},
        {"nbest": 1, "alpha": 2.0, "recombine": 1, "early_end": "on"},
    ],
    ids=str,
)
def test_a_beam_that_becomes_narrower(seed: int, asked: dict[str, Any], tmp_path: Path) -> None:
    model, rows = ending(VOCAB, seed), sources()
    settings = SearchSettings(**{"beam": 6, "alpha": 1.0, "max_extra": 8, **asked})
    prefixes = [[7, 9][: n % 3] for n in range(len(rows))]
    found = native_search(model, tmp_path, rows, settings, prefixes)
    assert_same_as_pytorch(found, model, rows, settings, prefixes)
    full = SearchSettings.of(settings, shrink_beam=False, beam_threshold=0, recombine=0)
    wide = native_search(model, tmp_path, rows, full, prefixes)
    assert [[h.tokens for h in own] for own in found] != [[h.tokens for h in own] for own in wide]


@native
def test_with_a_threshold_a_score_that_is_no_longer_better_ends_a_hypothesis(tmp_path: Path) -> None:
    model, rows = improving(VOCAB), sources()
    settings = SearchSettings(beam=6, alpha=9.0, max_extra=10, beam_threshold=90.0)
    found = native_search(model, tmp_path, rows, settings)
    assert_same_as_pytorch(found, model, rows, settings)
    wide = native_search(model, tmp_path, rows, SearchSettings.of(settings, beam_threshold=0))
    assert max(len(own[0].tokens) for own in wide) > max(len(own[0].tokens) for own in found)
    assert native_search(model, tmp_path, rows, SearchSettings.of(settings, beam_threshold=0, early_end="on")) == found


@native
@pytest.mark.parametrize("name", PACKED)
def test_without_an_early_end_a_threshold_that_drops_nothing_changes_nothing(name: str, tmp_path: Path) -> None:
    """With an early end, the results of half the kinds differ."""
    plain = SearchSettings(beam=6, alpha=2.0, max_extra=8)
    asked = SearchSettings.of(plain, beam_threshold=1000, early_end="off")
    wide, found = (native_search(ending(VOCAB, 1, PACKED[name]), tmp_path, sources(), one) for one in (plain, asked))
    assert found == wide


@native
def test_with_a_threshold_each_hypothesis_ends_by_itself(tmp_path: Path) -> None:
    model, rows = bigrams(17), [[*[5] * n, EOS] for n in (1, 2, 3, 5, 8)]
    settings = SearchSettings(beam=3, alpha=2.0, max_extra=8, beam_threshold=90.0)
    found = native_search(model, tmp_path, rows, settings)
    assert_same_as_pytorch(found, model, rows, settings)
    assert {len(own[0].tokens) for own in found} == {1}  # more if those of a sentence end together


def test_unsupported_models_are_refused_with_reasons() -> None:
    assert native_unsupported_reasons(model_config(TRANSLATORS["paper"])) == []
    for name in [*NOT_PACKED, "linear", "lstm bahdanau", "convolutional"]:
        reasons = native_unsupported_reasons(model_config(TRANSLATORS[name]))
        assert reasons and all(isinstance(reason, str) for reason in reasons), name
    for name, document in EVERY_LANGUAGE_MODEL.items():
        assert bool(native_unsupported_reasons(model_config(document))) == (name != "decoder only"), name


@pytest.mark.parametrize(("heads", "d_key", "supported"), [(1, 4096, True), (1, 4081, True), (32, 2049, False)])
def test_attention_larger_than_the_engine_accepts_is_refused(heads: int, d_key: int, supported: bool) -> None:
    config = model_config(TRANSLATORS["paper"] | {"d_model": 32, "n_heads": heads, "d_key": d_key, "n_kv_heads": 1})
    reasons = native_unsupported_reasons(config)
    expected = "its 32 heads have 2,064 features; supported: 4,096 per head, 65,536 in all"
    assert reasons == ([] if supported else [expected])
