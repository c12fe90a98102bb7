"""Sentences that join and leave a running search find what each finds by itself."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dragoman.decoding.cuda_graphs.backend import CudaGraphBackend
from dragoman.decoding.cuda_graphs.slot_search import Sentence, SlotSearch
from dragoman.decoding.cuda_graphs.slots import PlainOperations, SlotState, SlotStep, slots_unsupported_reasons
from dragoman.decoding.pytorch.backend import TorchBackend
from dragoman.decoding.search_types import Hypothesis, Phrases, SearchCall, SearchSettings
from dragoman.errors import DragomanError, UsageError
from dragoman.models.seq2seq import Model
from dragoman.models.transformer import Transformer
from dragoman.pipelines.pipeline import stream_windows
from dragoman.serve.search.slots import SlotSearchService
from dragoman.tokenizers import BOS, EOS
from every_kind import TRANSFORMERS, TRANSLATORS, built
from near_ties import assert_same

VOCAB = 17
SLOTTED = [
    name for name in TRANSFORMERS if all(word not in name for word in ("recurrent", "linear", "ssru", "shaw", "gemma"))
]
ASKED: list[dict[str, Any]] = [
    {}, {"alpha": 0.0}, {"nbest": 2}, {"min_length": 6}, {"alpha": 2.0, "max_extra": 9}, {"max_extra": 0},
]  # fmt: skip


def transformer(kind: str = "paper") -> Transformer:
    model = built(TRANSLATORS[kind], VOCAB)
    assert isinstance(model, Transformer)
    return model


def mixed(count: int, beams: int) -> list[Sentence]:
    """Sentences of different lengths, settings, and prefixes."""
    draw = random.Random(5)
    found = []
    for i in range(count):
        source = [*(draw.randrange(4, VOCAB) for _ in range(draw.randrange(1, 15))), EOS]
        asked = {"beam": beams, "max_extra": 4, **ASKED[i % len(ASKED)]}
        asked["nbest"] = min(beams, asked.get("nbest", 1))
        found.append(Sentence(source, [5, 6][: i % 4] if i % 3 == 0 else [], SearchSettings(**asked)))
    return found


def alone(model: Model, sentence: Sentence) -> list[Hypothesis]:
    return TorchBackend(model).search(SearchCall([sentence.source], sentence.settings, [sentence.prefix]), 1)[0]


@pytest.mark.parametrize(("beams", "slots"), [(1, 3), (3, 3), (4, 16), (2, 1)])
def test_sentences_of_all_settings_share_a_search(beams: int, slots: int) -> None:
    model, sentences = transformer(), mixed(14, beams)
    search = SlotSearch(model, beams, slots, 32)
    for _ in range(2):
        for sentence, found in zip(sentences, search.search(sentences), strict=True):
            assert_same(found, alone(model, sentence))
    assert len(search._free) == slots


def test_steps_of_few_sentences_are_those_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As sentences end, the steps become smaller; no more slots than `most` are used."""
    monkeypatch.setattr("dragoman.decoding.cuda_graphs.slot_search._AT_ONCE", ())
    model, counts = transformer(), []
    search = SlotSearch(model, 2, 8, 32)
    step = search.step.__call__

    def counted(count: int) -> None:
        counts.append(count)
        step(count)

    search.step = counted  # type: ignore[assignment]
    search.step.join = SlotStep(model, search.state, PlainOperations).join  # type: ignore[method-assign]
    sentences = mixed(8, 2)
    search.search(sentences)
    assert counts[0] == 8 and counts[-1] == 1 and counts == sorted(counts, reverse=True)
    counts.clear()
    search.search(sentences, most=2)
    assert set(counts) == {1, 4}


def test_nan_is_reported_and_the_slots_are_free_again() -> None:
    model, sentences = transformer(), mixed(6, 2)
    search = SlotSearch(model, 2, 4, 32)
    weight = model.decoder.embedding.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight[BOS] = float("nan")
    with pytest.raises(DragomanError, match=r"not numbers \(NaN\)"):
        search.search(sentences)
    with torch.no_grad():
        weight.copy_(kept)
    assert_same(search.search(sentences)[0], alone(model, sentences[0]))


def test_windows_overlap_and_keep_their_order() -> None:
    """The second window begins before the first one has ended; an error is that of its window."""
    both = threading.Barrier(2)

    def run(items: list[str]) -> list[int]:
        if "x" in items:
            raise UsageError("x")
        if int(items[0]) < 4:
            both.wait(60)
        return [int(item) for item in items]

    def windows(texts: list[str]) -> Iterator[int]:
        return stream_windows(texts, 2, lambda text, _: text, run, overlap=True)

    assert list(windows(["0", "1", "2", "3", "4"])) == [0, 1, 2, 3, 4]
    found = windows(["4", "5", "x"])
    assert [next(found), next(found)] == [4, 5]
    with pytest.raises(UsageError):
        next(found)


@pytest.mark.parametrize("kind", SLOTTED)
@pytest.mark.parametrize("beams", [1, 3])
def test_a_step_reads_nothing_from_the_device(kind: str, beams: int) -> None:
    """A tensor on the device "meta" has no data: reading a value raises an error, as in the capture of a graph."""
    model = transformer(kind).float().to("meta")
    assert isinstance(model, Transformer) and not slots_unsupported_reasons(model)
    state = SlotState(model, 4, beams, 8, 8)
    SlotStep(model, state, PlainOperations)(2)
    with pytest.raises(RuntimeError):
        bool(state.info[0, 0])


def test_requests_of_a_server_join_the_running_search(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CudaGraphBackend(transformer(), "cpu")
    monkeypatch.setattr("dragoman.serve.search.slots._SIZE", 64)
    service = SlotSearchService(backend, 1000)
    sentences = [*mixed(9, 2), *mixed(5, 3)]
    try:
        searches = [service.submit(SearchCall([s.source], s.settings, [s.prefix])) for s in sentences]
        both = service.submit(SearchCall([s.source for s in sentences[:2]], sentences[0].settings))
        drawn = service.submit(SearchCall([[5, EOS]], SearchSettings(sample=True, max_extra=4, seed=3)))
        kept = Phrases(((7,),))
        phrases = service.submit(SearchCall([[5, 6, EOS]], SearchSettings(beam=2), phrases=[kept]))
        wrong = service.submit(SearchCall([[5, EOS]], SearchSettings(beam=2), [[EOS]]))
        for sentence, search in zip(sentences, searches, strict=True):
            assert_same(search.future.result(60)[0], alone(backend.model, sentence))
        assert max(search.rows for search in searches) > 3 and service.load[0] >= 0
        assert [len(own) for own in both.future.result(60)] == [1, 1]
        assert len(drawn.future.result(60)[0]) == 1 and 7 in phrases.future.result(60)[0][0].tokens
        with pytest.raises(UsageError, match="special ids"):
            wrong.future.result(60)
        assert service.submit(SearchCall([], SearchSettings(beam=2))).future.result(60) == []
    finally:
        service.close()
    assert not service._thread.is_alive()


def test_a_service_captures_what_usual_searches_need_before_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three numbers of sentences, and encoders of as many for two lengths; other beams are captured when needed."""
    backend, captured = CudaGraphBackend(transformer(), "cpu"), []
    backend.captures = True

    def capture(step: Any, pool: object) -> Any:
        captured.append(step)
        return step

    monkeypatch.setattr(backend, "_capture", capture)
    service = SlotSearchService(backend, 1000, SearchSettings(beam=2))
    try:
        service.wait_until_prepared()
        assert len(captured) == 3 + 3 * 2
        for beams, expected in ((2, 9), (3, 9 + 1 + 1)):
            [first, *_] = sentences = mixed(9, beams)[: 9 if beams == 2 else 1]
            searches = [service.submit(SearchCall([s.source], s.settings, [s.prefix])) for s in sentences]
            assert_same(searches[0].future.result(60)[0], alone(backend.model, first))
            assert all(search.future.result(60) for search in searches)
            assert len(captured) == expected
    finally:
        service.close()


def test_a_larger_step_stands_for_one_that_is_not_captured() -> None:
    model, sentences = transformer(), mixed(4, 2)
    search, found = SlotSearch(model, 2, 16, 32), dict[int, list[Hypothesis]]()
    waiting = list(sentences)

    def take(free: int, used: int) -> list[Sentence]:
        taken, waiting[:] = waiting[:free], waiting[free:]
        return taken

    search.run(take, lambda sentence, hypotheses: found.update({id(sentence): hypotheses}), captures=False)
    assert set(search._steps) == {4}
    for sentence in sentences:
        assert_same(found[id(sentence)], alone(model, sentence))
    search.search(sentences)
    assert set(search._steps) == {1, 4}


def test_an_error_is_that_of_the_searches_that_run() -> None:
    backend = CudaGraphBackend(transformer(), "cpu")
    service = SlotSearchService(backend, 1000)
    assert isinstance(backend.model, Transformer)
    weight = backend.model.decoder.embedding.weight
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight[BOS] = float("nan")
        failed = service.submit(SearchCall([[5, EOS]], SearchSettings(beam=1, max_extra=4)))
        with pytest.raises(DragomanError, match=r"not numbers \(NaN\)"):
            failed.future.result(60)
        with torch.no_grad():
            weight.copy_(kept)
        after = service.submit(SearchCall([[5, EOS]], SearchSettings(beam=1, max_extra=4)))
        assert len(after.future.result(60)[0]) == 1
    finally:
        service.close()
