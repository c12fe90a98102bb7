"""The native engine with shortlists against the PyTorch backend: equal tokens, and scores to 1e-4.

The PyTorch search runs in float64, so that its results do not depend on the order of additions.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from array import array
from pathlib import Path

import pytest
import torch

from dragoman.data.batching import collate_source
from dragoman.decoding import Hypothesis, ModelStepper, SearchSettings, generate
from dragoman.decoding.native.backend import NativeBackend
from dragoman.decoding.native.engine import Engine, RaggedIds, Usage
from dragoman.decoding.native.library import NativeLibrary, Precision, load_native, unavailable_reason
from dragoman.decoding.native.pack import pack
from dragoman.decoding.native.stepper import EngineStepper
from dragoman.decoding.pytorch.stepper import ShortlistStepper
from dragoman.decoding.search_types import Phrases, SearchCall
from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import UsageError
from dragoman.models.seq2seq import Model
from dragoman.serve.search.native import NativeSearchService
from dragoman.tokenizers import EOS
from every_kind import TRANSLATORS, built
from native_builds import BUILDS
from near_ties import assert_same_search, same_hypotheses

pytestmark = pytest.mark.skipif(load_native() is None, reason=f"no native engine: {unavailable_reason()}")

VOCAB = 147
KINDS = {name: TRANSLATORS[name] for name in ("paper", "modern", "grouped-query", "t5", "alibi", "output bias")} | {
    "odd sizes": {
        "architecture": "transformer", "d_model": 70, "d_ff": 131, "n_heads": 5, "dropout": 0.0, "encoder_layers": 1,
        "decoder_layers": 2, "activation": "gelu_tanh", "gated": True,
    },
}  # fmt: skip
Lists = list[list[int]]


def numbers(count: int, least: int, most: int, seed: int) -> list[int]:
    return torch.randint(least, most, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@functools.cache
def sources() -> tuple[list[int], ...]:
    return tuple([*numbers(n, 4, VOCAB, n), EOS] for n in (1, 9, 4, 17, 2, 6, 11, 3, 23, 5))


def lists_for(prefixes: Lists | None = None) -> Lists:
    """Shortlists of a few tokens, of one block of 64 and its neighbours, and of nearly the whole vocabulary."""
    begins = prefixes or [[]] * len(sources())
    sizes = [3, 20, 62, 63, 64, 65, 100, 127, 128, 140]
    drawn = [torch.randperm(VOCAB, generator=torch.Generator().manual_seed(n))[:n].tolist() for n in sizes]
    return [sorted({EOS, *words, *begin}) for words, begin in zip(drawn, begins, strict=True)]


@functools.cache
def model_of(kind: str) -> Model:
    return built(KINDS[kind], VOCAB).float()


def engine_of(kind: str, folder: Path, precision: Precision = "float32") -> Engine:
    return Engine(pack(model_of(kind), folder / f"{kind}.{precision}", precision, max_positions=90))


def found_by(
    engine: Engine, settings: SearchSettings, lists: Lists, prefixes: Lists | None = None, **options: int
) -> list[list[Hypothesis]]:
    begins = prefixes or [[]] * len(sources())
    limits = [settings.limit(len(row), len(begin)) for row, begin in zip(sources(), begins, strict=True)]
    return engine.search(sources(), limits, settings, prefixes, shortlists=lists, **options)


def assert_same_as_pytorch(
    ours: list[list[Hypothesis]], kind: str, settings: SearchSettings, lists: Lists, prefixes: Lists | None = None
) -> None:
    """Compare with the search in PyTorch with the same shortlists."""

    def pytorch_search(model: Model) -> list[list[Hypothesis]]:
        stepper = ShortlistStepper(ModelStepper(model), lists, VOCAB)
        return generate(stepper, *collate_source(sources()), settings, prefixes)

    assert_same_search(ours, pytorch_search, model_of(kind), same_hypotheses)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beam", [1, 4])
def test_equal_tokens_and_scores(kind: str, beam: int, tmp_path: Path) -> None:
    settings = SearchSettings(beam=beam, nbest=min(beam, 3), max_extra=12)
    found = found_by(engine_of(kind, tmp_path), settings, lists_for())

    assert_same_as_pytorch(found, kind, settings, lists_for())
    for some, words in zip(found, lists_for(), strict=True):
        assert all(set(hypothesis.tokens) <= set(words) for hypothesis in some)


@pytest.mark.parametrize(
    "settings",
    [
        SearchSettings(beam=3, nbest=3, max_extra=6, min_length=5, no_repeat_ngram=2, alpha=0.0),
        SearchSettings(beam=2, max_extra=6, no_repeat_ngram=2, alpha=1.3),
        SearchSettings(beam=12, nbest=7, max_extra=3),
        SearchSettings(beam=1, max_extra=0, min_length=7),
    ],
    ids=["bigrams", "unigrams", "wide", "min_length"],
)
def test_every_setting_of_the_search(settings: SearchSettings, tmp_path: Path) -> None:
    assert_same_as_pytorch(
        found_by(engine_of("paper", tmp_path), settings, lists_for()), "paper", settings, lists_for()
    )


def test_a_list_of_the_end_alone(tmp_path: Path) -> None:
    """The target ends even before min_length if no other token is left."""
    lists = [[EOS]] * len(sources())
    for settings in (SearchSettings(beam=1), SearchSettings(beam=4, nbest=2, min_length=3)):
        found = found_by(engine_of("paper", tmp_path), settings, lists)
        assert_same_as_pytorch(found, "paper", settings, lists)
        assert all(some[0].tokens == [] and some[0].log_prob == pytest.approx(0, abs=1e-6) for some in found)


@pytest.mark.parametrize("beam", [1, 3])
def test_forced_prefixes(beam: int, tmp_path: Path) -> None:
    prefixes = [numbers(n % 5, 4, VOCAB, 50 + n) for n in range(len(sources()))]
    settings = SearchSettings(beam=beam, nbest=beam, max_extra=5, no_repeat_ngram=2)
    found = found_by(engine_of("modern", tmp_path), settings, lists_for(prefixes), prefixes)

    assert_same_as_pytorch(found, "modern", settings, lists_for(prefixes), prefixes)
    assert all(some[0].tokens[: len(begin)] == begin for some, begin in zip(found, prefixes, strict=True))


@pytest.mark.parametrize("native_build", BUILDS, indirect=True)
@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
def test_every_build_and_precision(native_build: NativeLibrary, precision: Precision, tmp_path: Path) -> None:
    """A shortlist of the whole vocabulary changes no bit; others agree with the engine's steps restricted to them."""
    if precision == "bfloat16" and not native_build.supports_bfloat16:
        pytest.skip("this processor does not multiply bfloat16")
    settings = SearchSettings(beam=3, nbest=2, max_extra=6)
    engine = engine_of("odd sizes", tmp_path, precision)
    everything = [list(range(VOCAB))] * len(sources())
    limits = [settings.limit(len(row)) for row in sources()]
    assert found_by(engine, settings, everything) == engine.search(sources(), limits, settings)
    stepper = ShortlistStepper(EngineStepper(engine), lists_for(), VOCAB)
    steps = generate(stepper, *collate_source(sources()), settings, None)
    for ours, theirs in zip(found_by(engine, settings, lists_for()), steps, strict=True):
        assert same_hypotheses(ours, theirs), f"{ours}\n  instead of {theirs}"


def test_probabilities_are_those_among_the_words_of_the_list(tmp_path: Path) -> None:
    """Ratios of probabilities are those of the whole vocabulary, and the probabilities of a shortlist sum to 1."""
    engine, words = engine_of("paper", tmp_path), [EOS, 20, 40, 90]
    one = SearchSettings(beam=1, max_extra=0)

    def first_step(word: int, lists: Lists | None) -> float:
        found = engine.search([sources()[3]], [2], one, [[word]], shortlists=lists)
        return found[0][0].token_log_probs[0]

    listed = torch.tensor([first_step(word, [words]) for word in words[1:]])
    whole = torch.tensor([first_step(word, None) for word in words[1:]])
    assert torch.allclose(listed - listed[0], whole - whole[0], atol=1e-5)
    end = engine.search([sources()[3]], [1], one, shortlists=[words])[0][0].token_log_probs[0]
    assert float(listed.exp().sum()) + float(torch.tensor(end).exp()) == pytest.approx(1, abs=1e-5)


def test_shortlists_count_as_memory(tmp_path: Path) -> None:
    engine = engine_of("paper", tmp_path)
    need = []
    for listed in (VOCAB, 1, 64, 65):
        usage, words = Usage(), None if listed == VOCAB else [[EOS, *range(4, 3 + listed)]]
        engine.search([sources()[0]], [9], SearchSettings(beam=1), shortlists=words, usage=usage)
        need.append(usage.bytes)
    block = 64 * 4 * 64  # 64 words of 12 numbers, padded to 64, in four bytes each

    assert [n - need[0] for n in need] == [0, block, block, 2 * block]
    settings = SearchSettings(beam=2, max_extra=4)
    whole = found_by(engine, settings, lists_for())
    assert found_by(engine, settings, lists_for(), memory=0) == whole


INVALID: dict[str, tuple[Lists, str]] = {
    "too few": ([[EOS]], "1 shortlists"),
    "empty": ([[EOS], [], [EOS]], "sentence 2: the shortlist must contain the end of sentence"),
    "no end": ([[EOS], [4, 5], [EOS]], "sentence 2: the shortlist must contain the end of sentence"),
    "twice": ([[EOS], [EOS], [EOS, 5, 5]], "sentence 3: the shortlist must be strictly ascending"),
    "falling": ([[EOS], [EOS], [5, EOS]], "sentence 3: the shortlist must be strictly ascending"),
    "too large": ([[EOS, VOCAB], [EOS], [EOS]], f"sentence 1: shortlist token = {VOCAB}; accepted: 0 to {VOCAB - 1}"),
    "below 0": ([[-1, EOS], [EOS], [EOS]], "sentence 1: shortlist token = -1"),
    "beyond 32 bits": (
        [[EOS, 2**32 + 5], [EOS], [EOS]],
        f"id of sentence 1 = {2**32 + 5}; accepted: integers of 32 bits",
    ),
    "no numbers": ([[EOS, 4.5], [EOS], [EOS]], "id of sentence 1 = 4.5; accepted: integers of 32 bits"),  # type: ignore[list-item]
    "without its prefix": ([[EOS], [EOS], [EOS]], "sentence 1: the shortlist must contain the forced prefix"),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_shortlist_is_an_error(name: str, tmp_path: Path) -> None:
    lists, message = INVALID[name]
    prefixes = [[7], [], []] if "prefix" in name else None
    rows, settings = sources()[:3], SearchSettings(beam=2)
    with pytest.raises(UsageError) as error:
        engine_of("paper", tmp_path).search(rows, [9, 9, 9], settings, prefixes, shortlists=lists)
    assert message in str(error.value)


def learned(seed: int, frequent: int, longest: int, source_size: int = VOCAB) -> Shortlist:
    """A shortlist with lists of up to `longest` random tokens, some of them empty."""
    draw = random.Random(seed)
    starts, ids = array("i", [0]), array("i")
    for _ in range(source_size):
        ids.extend(sorted(draw.sample(range(VOCAB), draw.choice([0, 1, longest]))))
        starts.append(len(ids))
    words = {EOS, *draw.sample(range(VOCAB), frequent)}
    return Shortlist(longest, VOCAB, "5a" * 32, array("i", sorted(words)), starts, ids)


@pytest.mark.parametrize(("frequent", "longest"), [(0, 1), (5, 9), (60, 70), (VOCAB, 3)])
def test_the_library_selects_the_same_tokens_as_python(tmp_path: Path, frequent: int, longest: int) -> None:
    engine, shortlist = engine_of("paper", tmp_path), learned(frequent, frequent, longest)
    required = [numbers(n % 4, 0, VOCAB, n) for n in range(len(sources()))]
    found = engine.shortlists(shortlist, sources(), required)

    rows = [shortlist.of(source, own) for source, own in zip(sources(), required, strict=True)]
    assert [found[i].tolist() for i in range(len(found))] == rows and len(found) == len(rows)
    assert len(engine.shortlists(shortlist, [], [])) == 0
    assert engine.shortlists(shortlist, [[], [4]], [[7], []])[0].tolist() == shortlist.of([], [7])


def test_tokens_outside_the_vocabularies_of_a_shortlist_are_errors(tmp_path: Path) -> None:
    engine, shortlist = engine_of("paper", tmp_path), learned(3, 5, 9, source_size=40)
    for source, required, message in (
        ([39, 40], [], "source token = 40; accepted: 0 to 39"),
        ([-1], [], "source token = -1"),
        ([5], [VOCAB], f"required token = {VOCAB}; accepted: 0 to {VOCAB - 1}"),
    ):
        with pytest.raises(UsageError, match=message):
            engine.shortlists(shortlist, [source], [required])
    for changed, message in (
        ({"frequent": array("i", [VOCAB])}, "frequent token"),
        ({"ids": array("i", [VOCAB] * len(shortlist.ids))}, "listed token"),
        ({"ids": shortlist.ids[:-1]}, "end of a list"),
        ({"starts": array("i", [-1] * 41)}, "start of a list = -1"),
        ({"starts": array("i", range(40, -1, -1))}, "end of a list"),
    ):
        with pytest.raises(UsageError, match=message):
            engine.shortlists(dataclasses.replace(shortlist, **changed), [range(40)], [[]])


def test_rows_that_do_not_fit_the_request_are_errors(tmp_path: Path) -> None:
    """Of the library's own type, which it reads without checking its lengths."""
    engine, limits, settings = engine_of("paper", tmp_path), [9, 9], SearchSettings(beam=1)
    for count in (1, 3):
        rows = RaggedIds.of([[EOS]] * count)
        with pytest.raises(UsageError, match=f"2 prefixes, {count} shortlists; give one of each per sentence"):
            engine.request(sources()[:2], limits, settings, shortlists=rows)
        with pytest.raises(UsageError, match=f"{count} lists of required ids for 2 sources"):
            engine.shortlists(learned(1, 5, 9), sources()[:2], [[]] * count)
    for ids, offsets in (([3], [0, 10**9]), ([3], [0]), ([3], [])):
        with pytest.raises(ValueError, match="the last offset must be the number of ids, 1"):
            RaggedIds(array("i", ids), array("q", offsets))


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    ("source", "prefix", "message"),
    [
        ([5, EOS], [999], "sentence 2: {} token = 999"),
        ([-1, EOS], [], "sentence 2: source token = -1"),
        ([5, EOS], [2**40], f"id of sentence 2 = {2**40}"),
        ([5, EOS], ["a"], "id of sentence 2 = 'a'"),
    ],
)
def test_errors_name_the_sentence_with_a_shortlist_too(
    tmp_path: Path, listed: bool, source: list[int], prefix: list[int], message: str
) -> None:
    backend = NativeBackend(engine_of("paper", tmp_path), "float32", 1, lambda: pytest.fail("not needed"))
    backend.shortlist = learned(1, 5, 9) if listed else None
    with pytest.raises(UsageError, match=re.escape(message.format("required" if listed else "prefix"))):
        backend.search(SearchCall([[5, EOS], source], SearchSettings(beam=1, max_extra=5), [[], prefix]), 4000)


def test_a_service_finds_the_same_with_a_shortlist_prefixes_and_phrases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a source whose tokens all differ, and with phrases and prefixes outside the lists."""
    monkeypatch.setattr("dragoman.serve.search.native._EXTRA", 12)  # short targets: most tokens are those of lists
    backend = NativeBackend(engine_of("paper", tmp_path), "float32", 2, lambda: pytest.fail("not needed"))
    backend.shortlist = learned(1, 0, 5)
    settings = SearchSettings(beam=3, max_extra=9)
    rows = [*sources(), [*range(4, 27), EOS]]
    prefixes: Lists = [[*range(100, 100 + i % 4)] for i in range(len(rows))]
    phrases = [Phrases(((120 + i, 121 + i),), None, b"") if i % 3 == 0 else None for i in range(len(rows))]
    service = NativeSearchService(backend, max(map(len, rows)), rows=8)
    try:
        found = service.submit(SearchCall(rows, settings, prefixes, phrases)).future.result(300)
    finally:
        service.close()
    assert found == backend.search(SearchCall(rows, settings, prefixes, phrases), 4000)
    unrestricted = NativeBackend(backend.engine, "float32", 2, lambda: pytest.fail("not needed"))
    assert found != unrestricted.search(SearchCall(rows, settings, prefixes, phrases), 4000)
