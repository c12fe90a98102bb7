"""Searches of many callers at once: the results of `DecodingBackend.search`, whatever else is searched meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.decoding import SearchSettings
from dragoman.decoding.backend import DecodingBackend
from dragoman.decoding.native.backend import NativeBackend
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.library import load_native, unavailable_reason
from dragoman.decoding.native.pack import pack
from dragoman.decoding.pytorch.backend import TorchBackend
from dragoman.decoding.search_types import Hypothesis, Ids, SearchCall
from dragoman.errors import DragomanError, UsageError
from dragoman.serve.search import open_service
from dragoman.serve.search.native import NativeSearchService
from dragoman.serve.search.service import BatchedSearchService, Search, SearchService
from dragoman.tokenizers import EOS
from every_kind import TRANSLATORS, built, ending
from served_models import until

pytestmark = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")

VOCAB, POSITIONS, LONGEST = 83, 80, 20
SETTINGS = [
    SearchSettings(beam=1, max_extra=12),
    SearchSettings(beam=4, nbest=3, max_extra=12),
    SearchSettings(beam=2, min_length=4, no_repeat_ngram=2, alpha=0.0, max_extra=12),
]


@pytest.fixture(scope="module", params=["modern", "ssru"])
def model(request: pytest.FixtureRequest) -> object:
    return built(TRANSLATORS[request.param], VOCAB).float()


@pytest.fixture(scope="module")
def backend(model: object, tmp_path_factory: pytest.TempPathFactory) -> NativeBackend:
    path = pack(model, tmp_path_factory.mktemp("service") / "packed", "int8", max_positions=POSITIONS)  # type: ignore[arg-type]
    return NativeBackend(Engine(path), "int8", 2, lambda: TorchBackend(model, "cpu"))  # type: ignore[arg-type]


@pytest.fixture
def service(backend: NativeBackend) -> Iterator[NativeSearchService]:
    opened = NativeSearchService(backend, LONGEST, rows=12)
    yield opened
    opened.close()


def sentences(count: int, seed: int) -> list[list[int]]:
    numbers = random.Random(seed)
    return [
        [*(numbers.randrange(4, VOCAB) for _ in range(numbers.randrange(1, LONGEST - 1))), EOS] for _ in range(count)
    ]


def expected(
    backend: DecodingBackend, sources: list[list[int]], settings: SearchSettings, prefix: Ids = ()
) -> list[list[Hypothesis]]:
    return backend.search(SearchCall(sources, settings, [prefix] * len(sources)), 4000)


def test_requests_of_many_callers_get_the_bits_of_a_search_alone(
    backend: NativeBackend, service: NativeSearchService
) -> None:
    requests = [(sentences(1 + i % 7, i), SETTINGS[i % 3], [5, 6] if i % 4 == 0 else []) for i in range(60)]
    found: dict[int, list[list[Hypothesis]]] = {}

    def call(first: int) -> None:
        for i in range(first, len(requests), 6):
            sources, settings, prefix = requests[i]
            call, ranks = SearchCall(sources, settings, [prefix] * len(sources)), [float(i % 5)] * len(sources)
            search = service.submit(call, ranks)
            found[i] = search.future.result(300)
            assert search.computed > 0 and search.queued >= 0

    threads = [threading.Thread(target=call, args=(first,)) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (sources, settings, prefix) in enumerate(requests):
        assert found[i] == expected(backend, sources, settings, prefix), i
    assert service.load == (0, 0)


def test_beams_that_become_narrower_and_beams_that_do_not_share_steps(tmp_path: Path) -> None:
    model = ending(VOCAB)
    engine = Engine(pack(model, tmp_path / "packed", "float32", max_positions=POSITIONS))
    backend = NativeBackend(engine, "float32", 1, lambda: TorchBackend(model, "cpu"))
    narrow: list[dict[str, Any]] = [
        {"shrink_beam": False}, {}, {"beam_threshold": 0.2}, {"recombine": 1, "shrink_beam": False},
    ]  # fmt: skip
    settings = [SearchSettings(beam=4, nbest=2, max_extra=12, **own) for own in narrow]
    sources = sentences(9, 8)
    service = NativeSearchService(backend, LONGEST, rows=12)

    searches = [service.submit(SearchCall([source], one)) for source in sources for one in settings]
    found = [search.future.result(300)[0] for search in searches]

    service.close()
    for number, one in enumerate(settings):
        assert found[number::4] == expected(backend, sources, one)
    assert found[::4] != found[1::4] and found[::4] != found[2::4]


def order_of_ends(service: NativeSearchService, monkeypatch: pytest.MonkeyPatch) -> list[Search]:
    """Return a list to which searches are added in the order in which they end."""
    ended: list[Search] = []
    finish = service._finish

    def noted(done: Sequence[Any]) -> None:
        ended.extend(pending.search for pending in done)
        finish(done)

    monkeypatch.setattr(service, "_finish", noted)
    return ended


def test_a_short_request_overtakes_a_long_one_that_is_running(
    service: NativeSearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = order_of_ends(service, monkeypatch)
    many = sentences(3000, 1)  # the other one is submitted before they end, also on a busy machine
    long = service.submit(SearchCall(many, SETTINGS[1]), [float(i) for i in range(len(many))])
    short = service.submit(SearchCall(sentences(1, 2), SETTINGS[1]), [0.0])
    assert len(long.future.result(300)) == 3000 and len(short.future.result(300)) == 1
    assert ended == [short, long]
    assert long.queued > 2 * short.queued


def test_new_requests_do_not_overtake_the_second_sentence_of_a_request_forever(
    service: NativeSearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = order_of_ends(service, monkeypatch)
    service.total_rate = 1.0
    earlier = service.submit(SearchCall(sentences(3000, 1), SETTINGS[1]))
    request = service.submit(SearchCall(sentences(40, 2), SETTINGS[1]), [0.0] + [20.0] * 39)
    until(lambda: service.load[0] < 2900)  # more than 20 tokens have been admitted
    later = service.submit(SearchCall(sentences(300, 3), SETTINGS[1]))
    for search in earlier, request, later:
        search.future.result(300)
    assert ended.index(request) < ended.index(later)


def test_a_cancelled_search_frees_its_rows(backend: NativeBackend, service: NativeSearchService) -> None:
    many = sentences(2000, 3)
    searches = [service.submit(SearchCall(many, SETTINGS[1])) for _ in range(3)]
    until(lambda: service.load[1] > 0)
    for search in searches:
        service.cancel(search)
        service.cancel(search)
    with pytest.raises(CancelledError):
        searches[-1].future.result()
    sources = sentences(5, 4)
    call = SearchCall(sources, SETTINGS[0])
    assert service.submit(call).future.result(300) == backend.search(call, 4000)
    until(lambda: service.load == (0, 0))


def test_a_cancelled_search_of_the_backend_takes_no_sentence_of_another_search(service: NativeSearchService) -> None:
    many, sampled = sentences(1000, 7), SearchSettings(beam=1, sample=True, max_extra=5)
    first = service.submit(SearchCall(many, SETTINGS[1]))
    running, waiting = (service.submit(SearchCall(many[:n], sampled)) for n in (100, len(many)))
    service.cancel(waiting)
    assert waiting.future.cancelled() or running.future.done()
    assert len(first.future.result(300)) == len(many)


def test_what_the_engine_does_not_support_is_searched_by_the_backend(
    backend: NativeBackend, service: NativeSearchService
) -> None:
    wide = SearchSettings(beam=16, max_extra=5)
    sources = sentences(2, 5)
    assert service.submit(SearchCall(sources, wide)).future.result(300) == expected(backend, sources, wide)
    sampled = SearchSettings(beam=1, sample=True, seed=3, max_extra=5)
    assert service.submit(SearchCall(sources, sampled)).future.result(300) == expected(backend, sources, sampled)
    long = [[*[7] * (LONGEST + 5), EOS]]
    assert service.submit(SearchCall(long, SETTINGS[0])).future.result(300) == expected(backend, long, SETTINGS[0])


def test_invalid_requests_are_refused_and_the_next_one_is_answered(service: NativeSearchService) -> None:
    with pytest.raises(UsageError, match=f"sentence 1: source token = {VOCAB}"):
        service.submit(SearchCall([[VOCAB, EOS]], SETTINGS[0]))
    with pytest.raises(UsageError, match="2 ranks for 1 sentences"):
        service.submit(SearchCall([[5, EOS]], SETTINGS[0]), [0.0, 1.0])
    assert service.submit(SearchCall([], SETTINGS[0])).future.result(1) == []
    assert service.submit(SearchCall([[5, EOS]], SETTINGS[0])).future.result(300)


def test_a_service_is_closed_while_it_searches(backend: NativeBackend) -> None:
    for count in (3000, 30_000, 300_000):  # a busy machine may finish the first before the service is closed
        service = NativeSearchService(backend, LONGEST)
        search = service.submit(SearchCall(sentences(count, 6), SETTINGS[1]))
        service.close()
        service.close()
        with pytest.raises(DragomanError, match="closed"):
            service.submit(SearchCall([[5, EOS]], SETTINGS[0]))
        with suppress(CancelledError):
            search.future.result(300)
        if search.future.cancelled():
            break
    assert search.future.cancelled()


@pytest.mark.parametrize("rows", [0, 1 << 20])
def test_limits_out_of_range(backend: NativeBackend, rows: int) -> None:
    with pytest.raises(DragomanError, match=rf"rows = {rows}; accepted"):
        NativeSearchService(backend, LONGEST, rows=rows)


def test_a_model_that_computes_nan_fails_its_requests_and_not_the_service(tmp_path: Path) -> None:
    broken = built(TRANSLATORS["modern"], VOCAB).float()
    for name, weights in broken.named_parameters():
        if "norm" in name:
            weights.data.fill_(3e38)
    path = pack(broken, tmp_path / "packed", "float32", max_positions=POSITIONS)
    service = NativeSearchService(NativeBackend(Engine(path), "float32", 1, lambda: TorchBackend(broken, "cpu")), 10)
    for _ in range(2):
        with pytest.raises(DragomanError, match=r"not finite|NaN"):
            service.submit(SearchCall([[5, EOS], [6, EOS]], SETTINGS[0])).future.result(300)
    service.close()


def test_any_backend_can_be_served(backend: NativeBackend) -> None:
    torch_backend = backend.to_torch()
    service: SearchService = open_service(torch_backend, LONGEST)
    assert isinstance(service, BatchedSearchService)
    requests = [(sentences(3, i), SETTINGS[i % 3]) for i in range(6)]
    searches: list[Search] = [service.submit(SearchCall(sources, settings)) for sources, settings in requests]
    for search, (sources, settings) in zip(searches, requests, strict=True):
        tokens = [[h.tokens for h in nbest] for nbest in search.future.result(300)]
        assert tokens == [[h.tokens for h in nbest] for nbest in expected(torch_backend, sources, settings)]
    cancelled = service.submit(SearchCall(sentences(1, 9), SETTINGS[0]))
    service.cancel(cancelled)
    with pytest.raises(UsageError):
        service.submit(SearchCall([[VOCAB + 5, EOS]], SETTINGS[0], [[4, EOS]])).future.result(300)
    service.close()
    assert cancelled.future.cancelled() or cancelled.future.done()


class OneByOne:
    """A backend that notes the first token of each search and ends it when `may_end` is released."""

    def __init__(self) -> None:
        self.searched: list[int] = []
        self.may_end = threading.Semaphore(0)

    def search(self, call: SearchCall, batch_tokens: int) -> list[list[Hypothesis]]:
        self.searched.append(call.sources[0][0])
        self.may_end.acquire()
        return [[] for _ in call.sources]


def test_new_requests_do_not_overtake_a_later_sentence_forever_in_batches() -> None:
    backend = OneByOne()
    service = BatchedSearchService(backend, batch_tokens=1)  # type: ignore[arg-type]
    service.total_rate = 1.0
    service.submit(SearchCall([[0] * 9], SETTINGS[0]))
    until(lambda: backend.searched == [0])
    service.submit(SearchCall([[1] * 9], SETTINGS[0]), [20.0])
    for number in range(2, 9):
        service.submit(SearchCall([[number] * 9], SETTINGS[0]))
        backend.may_end.release()
        until(lambda expected=number: len(backend.searched) == expected)
    backend.may_end.release(9)
    service.close()
    assert backend.searched[:6] == [0, 2, 3, 4, 1, 5]
