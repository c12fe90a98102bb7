"""What may come next, and what a forced prefix does to limits and scores."""

from __future__ import annotations

import itertools

import pytest
import torch

from dragoman.decoding import Hypothesis, ModelStepper, SearchSettings, generate
from dragoman.decoding.pytorch.stepper import SearchRequest, disallow_repeated_ngrams
from dragoman.errors import UsageError
from dragoman.tokenizers import BOS, EOS, PAD
from toy_model import ToyModel, padded, teacher_forced

SOURCES = [[4, 6, 5, 3], [5, 3], [7, 4, 6, 5, 4, 3]]
VOCAB = 9


def request(count: int, prefixes: list[list[int]] | None = None, min_length: int = 0, ngram: int = 0) -> SearchRequest:
    settings = SearchSettings(min_length=min_length, no_repeat_ngram=ngram)
    return SearchRequest.build(torch.full((count, 1), EOS), None, settings, prefixes)


def crossed_out(request: SearchRequest, tokens: list[list[int]], possible: bool = True) -> list[set[int]]:
    """The forbidden tokens of each row."""
    rows = torch.tensor(tokens, dtype=torch.long).view(len(tokens), -1)
    allowed = request.allowed(torch.full((len(tokens), VOCAB), possible), rows, torch.arange(len(tokens)))
    return [set((~row).nonzero()[:, 0].tolist()) for row in allowed]


def search(prefix: list[list[int]] | None = None, **settings: int | bool | float) -> list[list[Hypothesis]]:
    src, mask = padded(SOURCES)
    return generate(ModelStepper(ToyModel(VOCAB)), src, mask, SearchSettings(**settings), prefix)  # type: ignore[arg-type]


def test_padding_and_begin_are_crossed_out() -> None:
    assert crossed_out(request(2), [[], []]) == [{PAD, BOS}, {PAD, BOS}]


@pytest.mark.parametrize(("length", "crossed"), [(0, set()), (2, set()), (3, {EOS})])
def test_the_end_is_crossed_out_below_the_minimum(length: int, crossed: set[int]) -> None:
    assert crossed_out(request(1, min_length=length), [[4, 5]]) == [crossed | {PAD, BOS}]


@pytest.mark.parametrize(
    ("size", "tokens", "crossed"),
    [
        (1, [4, 5, 4], {4, 5}),
        (2, [4, 5, 4], {5}),
        (2, [4, 5, 6], set()),
        (2, [4, 4, 4], {4}),
        (3, [6, 4, 5, 7, 4, 5, 8, 4, 5], {7, 8}),
        (3, [4, 5], set()),
        (4, [4, 5, 6], set()),
    ],
)
def test_tokens_that_would_repeat_an_ngram_are_crossed_out(size: int, tokens: list[int], crossed: set[int]) -> None:
    other = [8] * (len(tokens) - 1) + [7]
    allowed = torch.ones(2, VOCAB, dtype=torch.bool)

    disallow_repeated_ngrams(allowed, torch.tensor([tokens, other]), size)

    assert set((~allowed[0]).nonzero()[:, 0].tolist()) == crossed
    if size > 1:
        assert crossed_out(request(2, ngram=size), [tokens, other])[0] == crossed | {PAD, BOS}


def test_a_prefix_leaves_its_own_token_of_its_own_sentence() -> None:
    forced, free = request(3, [[6, 7], [], [5]]), {PAD, BOS}

    assert crossed_out(forced, [[], [], []]) == [set(range(9)) - {6}, free, set(range(9)) - {5}]
    assert crossed_out(forced, [[6], [4], [5]]) == [set(range(9)) - {7}, free, free]


def test_a_prefix_wins_over_everything_else() -> None:
    forced = request(1, [[4, 4, 4]], min_length=9, ngram=2)

    assert crossed_out(forced, [[4, 4]]) == [set(range(9)) - {4}]


def test_where_nothing_is_left_the_target_ends() -> None:
    assert crossed_out(request(2), [[4], [5]], possible=False) == [set(range(9)) - {EOS}] * 2


@pytest.mark.parametrize("width", [1, 4])
def test_no_ngram_comes_twice_and_no_target_is_too_short(width: int) -> None:
    for hypotheses in search(beam=width, no_repeat_ngram=2, min_length=8, max_extra=9):
        tokens = hypotheses[0].tokens
        pairs = list(itertools.pairwise(tokens))
        assert len(set(pairs)) == len(pairs)
        assert len(tokens) >= 8


def test_a_minimum_beyond_the_limit_moves_the_limit() -> None:
    assert [len(hypotheses[0].tokens) for hypotheses in search(min_length=12, max_extra=1)] == [12, 12, 12]


@pytest.mark.parametrize("settings", [{"beam": 1}, {"beam": 4, "nbest": 3}, {"sample": True, "nbest": 3}])
def test_every_target_starts_with_its_prefix_and_its_score_counts_it(settings: dict[str, int | bool]) -> None:
    prefix = [[5, 5, 5], [], [8, 1]]

    for source, own, hypotheses in zip(SOURCES, prefix, search(prefix, no_repeat_ngram=2, **settings), strict=True):
        assert len(hypotheses) == settings.get("nbest", 1)
        for hypothesis in hypotheses:
            assert hypothesis.tokens[: len(own)] == own
            expected = teacher_forced(ToyModel(VOCAB), source, [*hypothesis.tokens, EOS])
            assert hypothesis.token_log_probs == pytest.approx(expected, abs=1e-4)


def test_a_prefix_may_be_longer_than_the_source() -> None:
    long = [4, 5, 6, 7] * 5

    found = search([long, long[:3], []], max_extra=2, min_length=20)

    assert found[0][0].tokens[:20] == long
    assert len(found[0][0].tokens) <= 21


def test_invalid_prefixes_are_refused() -> None:
    with pytest.raises(UsageError, match="2 forced prefixes for 3 sentences"):
        search([[4], [5]])
    with pytest.raises(UsageError, match=r"sentence 2: \[4, 3\] contains"):
        search([[], [4, EOS], []])
