"""The search with steps of fixed shapes, as replayed by a GPU, finds the hypotheses of the PyTorch backend."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import random
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from dragoman.decoding.cuda_graphs.backend import CudaGraphBackend, _batches, cuda_graph_unsupported_reasons
from dragoman.decoding.cuda_graphs.static_search import Sizes, StaticShapeSearch
from dragoman.decoding.pytorch.backend import TorchBackend
from dragoman.decoding.search_types import Hypothesis, SearchCall, SearchSettings
from dragoman.decoding.shortlist import AlignedWords
from dragoman.errors import DragomanError, UsageError
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import BOS, EOS, PAD
from every_kind import BLOCK, LANGUAGE_MODELS, TRANSFORMERS, TRANSLATORS, bigrams, built, covering, improving
from near_ties import assert_same, assert_same_search, same_hypotheses

VOCAB = 17
FIXED = [name for name in TRANSFORMERS if all(word not in name for word in ("recurrent", "linear", "ssru"))]
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1}, "beam": {"beam": 3, "nbest": 2}, "alpha 0": {"beam": 4, "nbest": 4, "alpha": 0.0},
    "min length": {"beam": 2, "min_length": 5}, "no repeat": {"beam": 3, "no_repeat_ngram": 2, "min_length": 6},
    "no repeated 3-grams": {"beam": 2, "no_repeat_ngram": 3, "min_length": 4},
    "not shrinking": {"beam": 4, "nbest": 3, "shrink_beam": False},
    "threshold": {"beam": 5, "nbest": 2, "beam_threshold": 0.3},
    "recombining": {"beam": 5, "nbest": 2, "recombine": 2},
    "ending early": {"beam": 5, "nbest": 2, "alpha": 2.0, "early_end": "on"},
    "threshold only": {"beam": 5, "nbest": 2, "alpha": 2.0, "beam_threshold": 0.3, "early_end": "off"},
    "recombining more tokens than there are": {"beam": 3, "recombine": 10_000},
    "sample": {"sample": True, "nbest": 3, "seed": 4},
    "sample top": {"sample": True, "top_k": 5, "top_p": 0.8, "temperature": 0.7, "min_length": 3},
}  # fmt: skip


BATCHED: dict[str, Any] = {"no_repeat_ngram": 100}
"""What sentences with slots of their own do not support."""
SHRINKING: dict[str, Any] = {"beam": 6, "nbest": 5, **BATCHED}
NEAR: dict[str, Any] = {"beam": 6, "nbest": 2, "beam_threshold": 0.6}
RECOMBINING: dict[str, Any] = {"beam": 6, "nbest": 2, "recombine": 1}

EACH = [*((kind, "beam") for kind in FIXED), *(("modern", name) for name in SETTINGS)]
"""Every kind with one setting, and one kind with every setting."""


def sources(count: int, longest: int = 21) -> list[list[int]]:
    rng = random.Random(3)
    return [[*(rng.randrange(4, VOCAB) for _ in range(rng.randrange(1, longest))), EOS] for _ in range(count)]


def assert_all_same(found: list[list[Hypothesis]], wanted: list[list[Hypothesis]]) -> None:
    for own, others in zip(found, wanted, strict=True):
        assert_same(own, others)


def assert_both_agree(model: Model, rows: list[list[int]], begins: list[list[int]], settings: SearchSettings) -> None:
    assert_all_same(
        CudaGraphBackend(model, "cpu").search(SearchCall(rows, settings, begins), 300),
        TorchBackend(model).search(SearchCall(rows, settings, begins), 300),
    )


@pytest.mark.parametrize("kind", covering(FIXED))
def test_every_kind_of_transformer(kind: str) -> None:
    model = built(TRANSLATORS[kind], VOCAB)
    assert cuda_graph_unsupported_reasons(model) == []
    rows = sources(9)
    assert_both_agree(model, rows, [[]] * 9, SearchSettings(beam=3, nbest=2, max_extra=4))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting(name: str) -> None:
    model = built(TRANSLATORS["modern"], VOCAB, shake=False)
    rows = sources(11)
    settings = SearchSettings(**{"max_extra": 3, **SETTINGS[name]})
    assert_both_agree(model, rows, [[]] * 11, settings)
    assert_both_agree(model, rows, [[5, 6, 5], [], [9]] + [[7]] * 8, settings)


def undecided() -> Model:
    """A model for which the end is about as probable as the best token, so that short and long targets compete."""
    model = built({**TRANSLATORS["paper"], "tie": "none"}, VOCAB)
    with torch.no_grad():
        model.output.weight *= 0.5  # type: ignore[operator]
        model.output.weight[EOS] = 1 / 12  # type: ignore[index, operator]
    return model


@pytest.mark.parametrize("settings", [{"beam": 4}, {"beam": 4, "nbest": 3}, {"beam": 8}, SHRINKING])
def test_the_length_penalty_decides_as_in_the_pytorch_backend(settings: dict[str, Any]) -> None:
    model, rows = undecided(), sources(16, 6)
    asked = SearchSettings(**{"alpha": 2.0, "max_extra": 10, **settings})

    lengths = {len(own[0].tokens) for own in TorchBackend(model).search(SearchCall(rows, asked), 9999)}

    assert min(lengths) == 0 and max(lengths) > 10
    assert_both_agree(model, rows, [[]] * 16, asked)


@pytest.mark.parametrize("narrow", [SHRINKING, NEAR, RECOMBINING])
def test_a_beam_that_becomes_narrower_finds_others_in_the_same_memory(narrow: dict[str, Any]) -> None:
    """The count of complete hypotheses starts again with each batch."""
    backend, rows = CudaGraphBackend(undecided(), "cpu"), sources(16, 6)
    asked = SearchSettings(alpha=2.0, max_extra=10, **narrow)

    found = [backend.search(SearchCall(rows, asked), 9999) for _ in range(2)]

    assert found[0] == found[1] and len(backend._idle) == 1
    wide = backend.search(SearchCall(rows, replace(asked, shrink_beam=False, beam_threshold=0.0, recombine=0)), 9999)
    assert [[h.tokens for h in own] for own in found[0]] != [[h.tokens for h in own] for own in wide]
    assert_both_agree(backend.model, rows, [[]] * 16, asked)


def test_with_a_threshold_a_score_that_is_no_longer_better_ends_a_hypothesis() -> None:
    model, rows = improving(VOCAB), sources(16, 6)
    asked = SearchSettings(beam=6, alpha=9.0, max_extra=10, beam_threshold=90.0)

    assert_both_agree(model, rows, [[]] * 16, asked)

    near, early, far, late = (
        CudaGraphBackend(model, "cpu").search(SearchCall(rows, replace(asked, **pruning)), 9999)
        for pruning in (
            {}, {"beam_threshold": 0.0, "early_end": "on"}, {"beam_threshold": 0.0}, {"early_end": "off"},
        )
    )  # fmt: skip
    assert max(len(own[0].tokens) for own in near) < max(len(own[0].tokens) for own in far)
    assert near == early and far == late


def test_with_a_threshold_each_hypothesis_ends_by_itself() -> None:
    asked = SearchSettings(beam=3, alpha=2.0, max_extra=8, beam_threshold=90.0)
    assert_both_agree(bigrams(VOCAB), sources(16, 6), [[]] * 16, asked)


@pytest.mark.parametrize(("settings", "beams"), [({"beam": 3, **BATCHED}, 3), ({"sample": True, "nbest": 3}, 1)])
def test_a_batch_has_as_many_sentences_as_the_budget_allows(settings: dict[str, Any], beams: int) -> None:
    model = built(TRANSLATORS["paper"], VOCAB)
    backend = CudaGraphBackend(model, "cpu")

    backend.search(SearchCall([[5] * 15 + [EOS]] * 9, SearchSettings(max_extra=3, **settings)), 16 * 4 * beams)

    sizes = {(size.sentences, size.source) for _, size in backend._idle}
    assert sizes == ({(4, 16), (1, 16)} if beams == 3 else {(4, 16)})  # 9 = 4 + 4 + 1 sentences; 27 = 6 * 4 + 3


def test_the_longest_sentence_of_a_batch_counts_for_the_budget() -> None:
    backend = CudaGraphBackend(built(TRANSLATORS["paper"], VOCAB), "cpu")
    rows = [[5] * (length - 1) + [EOS] for length in (30, 3, 16, 60, 5, 16, 3, 9)]

    backend.search(SearchCall(rows, SearchSettings(beam=1, max_extra=3, **BATCHED)), 64)

    sizes = {(size.sentences, size.source) for _, size in backend._idle}
    assert sizes == {(1, 64), (2, 32), (4, 16), (1, 16)}


def test_greedy_search_distinguishes_tokens_whose_sums_are_equal() -> None:
    """Token 5 is better than token 6 by less than the float32 resolution of the sum of a long target."""
    model = built({**TRANSLATORS["paper"], "tie": "none"}, VOCAB)
    with torch.no_grad():
        model.output.weight *= 0.01  # type: ignore[operator]
        model.output.weight[5] = 1 / 12  # type: ignore[index, operator]
        model.output.weight[6] = (1 - 2e-6) / 12  # type: ignore[index, operator]
    settings = SearchSettings(beam=1, min_length=150, max_extra=150)

    (found,) = CudaGraphBackend(model, "cpu").search(SearchCall([[7, EOS]], settings), 100)

    assert found[0].log_prob < -300 and found[0].tokens[:150] == [5] * 150


@pytest.mark.parametrize("settings", [SearchSettings(beam=2, max_extra=9), SearchSettings(sample=True, max_extra=9)])
def test_a_language_model_continues_its_prompts(settings: SearchSettings) -> None:
    model = built({"architecture": "decoder_only", **BLOCK, "n_layers": 2, "position": {"kind": "t5"}}, VOCAB)
    assert_both_agree(model, [[]] * 5, [[], [4], [5, 6, 7, 8], [9] * 20, [10, 11]], settings)


def test_targets_longer_than_learned_positions_use_the_pytorch_backend() -> None:
    model = built(TRANSLATORS["learned"], VOCAB)  # 40 positions
    rows = [[5, 6, EOS], [7] * 25 + [EOS], [8] * 27 + [EOS]]
    settings = SearchSettings(beam=2, max_extra=12)
    assert [settings.limit(len(row)) for row in rows] == [15, 38, 40]
    assert_both_agree(model, rows, [[]] * 3, settings)
    with pytest.raises(UsageError, match=r"learned positions \(max_len = 40"):
        assert_both_agree(model, [*rows, [8] * 28 + [EOS]], [[]] * 4, settings)


def test_searches_are_cached_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.decoding.cuda_graphs.backend._CACHED", 8)
    model = built(TRANSLATORS["paper"], VOCAB)
    backend, plain = CudaGraphBackend(model, "cpu"), TorchBackend(model)
    rows, settings = sources(16), SearchSettings(beam=2, max_extra=3, **BATCHED)
    for part in (rows, rows[::-1], rows[2:14]):
        assert_all_same(
            backend.search(SearchCall(part, settings), 2000), plain.search(SearchCall(part, settings), 2000)
        )
    assert len(backend._idle) == 1
    for beam in range(1, 12):
        backend.search(SearchCall(rows[:1], SearchSettings(beam=beam, max_extra=0, **BATCHED)), 100)
    assert len(backend._idle) == 8


def test_a_search_is_captured_when_it_occurs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it is one of the PyTorch backend; what has occurred once is forgotten, too."""
    monkeypatch.setattr("dragoman.decoding.cuda_graphs.backend._CACHED", 4)
    backend, rows = CudaGraphBackend(built(TRANSLATORS["paper"], VOCAB), "cpu"), sources(3)
    backend.captures = True
    settings = SearchSettings(beam=2, max_extra=3, **BATCHED)
    wanted = TorchBackend(backend.model).search(SearchCall(rows, settings), 9999)
    for is_captured in (False, True, True):
        assert_all_same(backend.search(SearchCall(rows, settings), 9999), wanted)
        assert [kept is not None for kept in backend._idle.values()] == [is_captured]
    for alpha in range(9):
        backend.search(SearchCall(rows, SearchSettings(beam=2, max_extra=3, alpha=alpha, **BATCHED)), 9999)
    assert list(backend._idle.values()) == [None] * 4


def test_searches_are_kept_in_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = itertools.accumulate(itertools.count(), lambda total, i: total + 30 * (i % 2))
    backend = CudaGraphBackend(built(TRANSLATORS["paper"], VOCAB), "cpu")
    monkeypatch.setattr(backend, "_reserved", lambda: next(reserved))  # each search takes 30
    backend._room = 100
    for beam in range(1, 6):
        backend.search(SearchCall(sources(1), SearchSettings(beam=beam, max_extra=0, **BATCHED)), 100)
    assert [settings.beam for settings, _ in backend._idle] == [3, 4, 5] and backend._idle_bytes() == 90
    backend._room = 10
    backend.search(SearchCall(sources(1), SearchSettings(beam=4, max_extra=0, **BATCHED)), 100)
    assert [settings.beam for settings, _ in backend._idle] == [4]


def test_searches_are_dropped_if_another_one_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, idle = CudaGraphBackend(built(TRANSLATORS["paper"], VOCAB), "cpu"), []
    backend.search(SearchCall(sources(1), SearchSettings(beam=1, max_extra=0, **BATCHED)), 100)
    plain = StaticShapeSearch

    def short(*arguments: Any) -> StaticShapeSearch:
        idle.append(len(backend._idle))
        if idle[-1]:
            raise torch.cuda.OutOfMemoryError("too much")
        return plain(*arguments)

    monkeypatch.setattr("dragoman.decoding.cuda_graphs.backend.StaticShapeSearch", short)
    asked, rows = SearchSettings(beam=2, max_extra=3, **BATCHED), sources(3)
    found = backend.search(SearchCall(rows, asked), 9999)
    assert_all_same(found, TorchBackend(backend.model).search(SearchCall(rows, asked), 9999))
    assert idle == [1, 0] and len(backend._idle) == 1


def test_batches_of_any_size_have_few_shapes() -> None:
    rows = [[5] * 14 for _ in range(200)]
    shapes = {}
    for count in range(1, 200):
        batches = list(_batches([(i, 0) for i in range(count)], rows, 4, 4096))
        assert [item for batch, _ in batches for item in batch] == [(i, 0) for i in range(count)]
        assert all(len(batch) <= size <= 64 for batch, size in batches)
        shapes[count] = [size for _, size in batches]
    assert [shapes[count] for count in (1, 2, 5, 16, 17, 64, 65, 130)] == [
        [1], [4], [16], [16], [64], [64], [64, 1], [64, 64, 4]
    ]  # fmt: skip


def test_to_torch_keeps_the_model_and_the_shortlist() -> None:
    backend = CudaGraphBackend(built(TRANSLATORS["paper"], VOCAB), "cpu")
    backend.shortlist = AlignedWords(VOCAB, VOCAB).shortlist(2, 9, "00" * 32)

    plain = backend.to_torch()

    assert backend.description == plain.description == "PyTorch backend, float64, cpu, shortlist (2 per token and 2)"
    backend.shortlist = None
    assert backend.description == "fixed shapes, float64, cpu"
    backend.shortlist = plain.shortlist
    assert type(plain) is TorchBackend
    assert plain.model is backend.model and plain.shortlist is backend.shortlist


def test_the_search_stops_soon_after_the_last_sentence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(TRANSLATORS["paper"], VOCAB, shake=False)
    steps = 0
    step = StaticShapeSearch.step

    def counted(self: StaticShapeSearch) -> None:
        nonlocal steps
        steps += 1
        step(self)

    monkeypatch.setattr(StaticShapeSearch, "step", counted)
    call = SearchCall([[5, EOS]], SearchSettings(sample=True, max_extra=400))
    (found,) = CudaGraphBackend(model, "cpu").search(call, 100)
    assert steps == -(-(len(found[0].tokens) + 1) // 8) * 8 < 402


def test_nan_is_reported_and_does_not_affect_the_next_search() -> None:
    model = built(TRANSLATORS["paper"], VOCAB)
    backend, settings = CudaGraphBackend(model, "cpu"), SearchSettings(beam=2, max_extra=3)
    weight = next(model.parameters())
    with torch.no_grad():
        kept = weight[7].clone()
        weight[7] = float("nan")
        with pytest.raises(DragomanError, match=r"not numbers \(NaN\)"):
            backend.search(SearchCall([[7, EOS], [8, EOS]], settings), 100)
        weight[7] = kept
    assert_both_agree(model, [[7, EOS], [8, EOS]], [[]] * 2, settings)
    assert_all_same(
        backend.search(SearchCall([[7, EOS], [8, EOS]], settings), 100),
        TorchBackend(model).search(SearchCall([[7, EOS], [8, EOS]], settings), 100),
    )


def test_nan_in_unused_rows_is_ignored() -> None:
    model = built({**TRANSLATORS["paper"], "tie": "none"}, VOCAB)
    with torch.no_grad():
        model.decoder.embedding.weight[EOS] = float("nan")  # type: ignore[union-attr, operator]
    assert_both_agree(model, [[5, 6], [7], [8, 9, 10]], [[]] * 3, SearchSettings(sample=True, max_extra=9))


def test_a_source_may_contain_padding_ids() -> None:
    assert_both_agree(
        built(TRANSLATORS["paper"], VOCAB), [[5, PAD, 6, EOS], [7, EOS]], [[]] * 2, SearchSettings(max_extra=3)
    )


@pytest.mark.parametrize("prefix", [[5, EOS], [PAD], [5, BOS, 6]])
def test_invalid_prefixes_are_refused(prefix: list[int]) -> None:
    backend = CudaGraphBackend(built(TRANSLATORS["paper"], VOCAB), "cpu")
    with pytest.raises(UsageError, match=r"sentence 2: .* contains special ids"):
        backend.search(SearchCall([[5, EOS]] * 2, SearchSettings(), [[], prefix]), 100)


def test_a_cached_search_does_not_depend_on_the_modes_of_its_first_caller() -> None:
    model, rows, settings = built(TRANSLATORS["modern"], VOCAB).float(), sources(5), SearchSettings(max_extra=3)
    wanted = TorchBackend(model).search(SearchCall(rows, settings), 300)
    backend = CudaGraphBackend(model, "cpu")
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert_all_same(backend.search(SearchCall(rows, settings), 300), wanted)
    assert_all_same(backend.search(SearchCall(rows, settings), 300), wanted)


def test_threads_may_share_a_backend() -> None:
    model, settings = built(TRANSLATORS["paper"], VOCAB), SearchSettings(beam=2, max_extra=3)
    parts = [sources(8)[place : place + 2] for place in range(0, 8, 2)] * 3
    wanted = [TorchBackend(model).search(SearchCall(part, settings), 300) for part in parts]
    backend = CudaGraphBackend(model, "cpu")
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda part: backend.search(SearchCall(part, settings), 300), parts))
    for got, own in zip(found, wanted, strict=True):
        assert_all_same(got, own)


@pytest.mark.parametrize("kind", ["paper", "learned", "modern"])
def test_warmup_steps_do_not_change_the_result(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def warmed(self: CudaGraphBackend, step: Callable[[], None], pool: Any = None) -> Callable[[], None]:
        for _ in range(3):
            step()
        return step

    monkeypatch.setattr(CudaGraphBackend, "_capture", warmed)
    assert_both_agree(
        built(TRANSLATORS[kind], VOCAB), sources(7), [[]] * 7, SearchSettings(beam=3, nbest=2, max_extra=4)
    )
    tiny = built({**TRANSLATORS["learned"], "position": {"kind": "learned", "max_len": 2}}, VOCAB)
    assert_both_agree(tiny, [[5, EOS]], [[]], SearchSettings(beam=2, max_extra=0))


def test_position_tables_live_as_long_as_the_graph_that_reads_them() -> None:
    model = built(TRANSLATORS["paper"], VOCAB).float()
    backend, settings = CudaGraphBackend(model, "cpu"), SearchSettings(beam=1, max_extra=3)
    backend.search(SearchCall([[5, EOS]], settings), 100)
    table = weakref.ref(model.decoder.positions.table)  # type: ignore[union-attr, arg-type]
    backend.search(SearchCall([[5] * 300 + [EOS]], settings), 100)
    gc.collect()
    assert table() is not None and model.decoder.positions.table is not table()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (TRANSLATORS["linear"], "its attention is linear"),
        (TRANSLATORS["ssru"], "SSRU instead of self-attention"),
        (TRANSLATORS["recurrent positions"], "RecurrentPositions"),
        (TRANSLATORS["lstm"], "architecture"),
        (LANGUAGE_MODELS["lstm language model"], "architecture"),
    ],
)
def test_unsupported_models_are_named(document: dict[str, Any], reason: str) -> None:
    assert any(reason in why for why in cuda_graph_unsupported_reasons(built(document, VOCAB)))


# --------------------------------------------------------------------------------------------------------- on a device
# A tensor on the device "meta" has no data: reading a value, or a shape that depends on one, raises an error, as during
# the capture of a CUDA graph.


@pytest.mark.parametrize(("kind", "name"), EACH)
def test_a_step_reads_nothing_from_the_device(kind: str, name: str) -> None:
    model = built(TRANSLATORS[kind], VOCAB).float().to("meta")
    with torch.no_grad():
        search = StaticShapeSearch(model, SearchSettings(**SETTINGS[name]), Sizes(4, 16, 32, prefixes=True))
        search.step()
    with pytest.raises(RuntimeError):
        bool(search.unfinished)


@pytest.mark.parametrize("kind", covering(name for name in FIXED if name != "batch norm"))
def test_training_reads_nothing_from_the_device(kind: str) -> None:
    model = built(TRANSLATORS[kind], VOCAB).float().to("meta").train()
    ids = torch.ones(3, 7, dtype=torch.long, device="meta")
    assert model(ids, ids > 0, ids).shape == (3, 7, VOCAB)


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def same_hypotheses_or_scores(ours: list[Hypothesis], theirs: list[Hypothesis]) -> bool:
    """Whether the hypotheses are equal, or differ but have the same scores, such as the same words in another order.

    A device that rounds differently may prune others of these.  Moved weights do not reproduce this, because they
    change the scores of all of them alike.
    """
    scores = [[hypothesis.score for hypothesis in own] for own in (ours, theirs)]
    return same_hypotheses(ours, theirs) or scores[0] == pytest.approx(scores[1], abs=1e-4)


@cuda
@pytest.mark.parametrize(("kind", "name"), EACH)
def test_a_cuda_graph_finds_the_same_hypotheses(kind: str, name: str) -> None:
    model = built(TRANSLATORS[kind], VOCAB)
    rows, settings = sources(16), SearchSettings(**{"max_extra": 3, **SETTINGS[name]})
    begins: list[list[int]] = [[5, 6, 5], [], [9], *[[7]] * 13]
    backend = CudaGraphBackend(copy.deepcopy(model), "cuda")
    for part in (slice(0, 16), slice(16, None, -1), slice(0, 16)):

        def search(model: Model, part: slice = part) -> list[list[Hypothesis]]:
            return TorchBackend(model).search(SearchCall(rows[part], settings, begins[part]), 300)

        found = backend.search(SearchCall(rows[part], settings, begins[part]), 300)
        assert_same_search(found, search, model, same_hypotheses_or_scores)


@cuda
@pytest.mark.parametrize("kind", covering(FIXED))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_graphs_run_in_float32_and_bfloat16(kind: str, dtype: torch.dtype) -> None:
    backend = CudaGraphBackend(built(TRANSLATORS[kind], VOCAB, shake=False).to(dtype), "cuda")
    for _ in range(2):
        found = backend.search(SearchCall(sources(16), SearchSettings(beam=3, max_extra=3)), 300)
        assert len(found) == 16 and all(math.isfinite(own[0].score) for own in found)
