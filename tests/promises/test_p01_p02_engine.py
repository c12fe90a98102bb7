"""P1 and P2 on the native engine: N in, N out, each in its place, and nothing beside a sentence changes a bit of it.

What is compared here is compared by ==, numbers too: the sums of a row never depend on the rows beside it.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dragoman.decoding import Hypothesis, SearchSettings
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.library import load_native, unavailable_reason
from dragoman.decoding.native.pack import Precision, pack
from dragoman.models.seq2seq import Model
from dragoman.pipelines.lines import Translation
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import EOS
from every_kind import TRANSLATORS, built

NATIVE = load_native()
pytestmark = pytest.mark.skipif(NATIVE is None, reason=f"no native engine: {unavailable_reason()}")

VOCAB, POSITIONS = 150, 48
HAS_BFLOAT16 = NATIVE is not None and NATIVE.supports_bfloat16
"""Of the build that is used: it takes a processor that multiplies bfloat16, and the build for AVX-512."""
PACKED: dict[str, tuple[str, Precision]] = {
    "paper": ("paper", "float32"),
    "paper int8": ("paper", "int8"),
    "modern int8": ("modern", "int8"),
    "grouped": ("grouped-query", "float32"),
    "t5 int8": ("t5", "int8"),
    "wide int8": ("wide", "int8"),
    **({"modern bfloat16": ("modern", "bfloat16")} if HAS_BFLOAT16 else {}),
}
"""By name, a kind of tests/every_kind.py and how it is packed."""
KINDS = TRANSLATORS | {"wide": TRANSLATORS["paper"] | {"d_model": 192, "d_ff": 448, "n_heads": 4, "decoder_layers": 1}}
"""The wide one has steps that are worth sharing among threads."""
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "nbest": 3},
    "wide": {"beam": 7, "nbest": 7, "alpha": 0.0},
    "not shrinking": {"beam": 5, "nbest": 3, "shrink_beam": False},
    "threshold": {"beam": 5, "nbest": 1, "beam_threshold": 0.5},
    "recombining": {"beam": 5, "nbest": 1, "recombine": 1},
    "guarded": {"beam": 3, "no_repeat_ngram": 2, "min_length": 2},
}


class Line(NamedTuple):
    """A source with its end, how the target begins, and how long it may be."""

    source: tuple[int, ...]
    prefix: tuple[int, ...]
    limit: int


def line(words: list[int], prefix: list[int], more: int) -> Line:
    return Line((*words, EOS), tuple(prefix), len(prefix) + more)


WORD = st.integers(4, VOCAB - 1)
LINE = st.builds(
    line,
    st.lists(WORD, max_size=20) | st.lists(WORD, min_size=POSITIONS - 1, max_size=POSITIONS - 1),
    st.just([]) | st.lists(WORD, max_size=4),
    st.integers(3, 14),
)
LINES = st.lists(LINE, min_size=1, max_size=14)


def lively(kind: str) -> Model:
    """A model that listens to its source, and that stops now and then."""
    model = built(KINDS[kind] | {"tie": "none"}, 40 * VOCAB if kind == "wide" else VOCAB).float()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.5, generator=generator)
            else:
                middle = float(name.endswith("weight"))
                nn.init.uniform_(parameter, middle - 0.5, middle + 0.5, generator=generator)
        model.get_parameter("output.weight")[EOS] *= 2.2
    return model


@functools.cache
def engine(name: str) -> Engine:
    kind, precision = PACKED[name]
    model = lively(kind)
    with tempfile.TemporaryDirectory() as folder:  # what is open stays open
        return Engine(pack(model, Path(folder, "packed"), precision, max_positions=POSITIONS))


def together(
    name: str, lines: list[Line], search: str, threads: int = 1, rows: int = 64, lists: list[list[int]] | None = None
) -> list[list[Hypothesis]]:
    return engine(name).search(
        [one.source for one in lines],
        [one.limit for one in lines],
        SearchSettings(**SEARCHES[search]),
        prefixes=[one.prefix for one in lines],
        threads=threads,
        rows=rows,
        shortlists=lists,
    )


@functools.cache
def alone(name: str, one: Line, search: str) -> list[Hypothesis]:
    return together(name, [one], search)[0]


@pytest.mark.parametrize("name", PACKED)
@settings(max_examples=25, deadline=None)
@given(
    lines=LINES,
    search=st.sampled_from(sorted(SEARCHES)),
    threads=st.integers(1, 4),
    rows=st.sampled_from([1, 4, 9, 23, 64]),
)
def test_neighbours_lengths_threads_and_rows_change_no_bit(
    name: str, lines: list[Line], search: str, threads: int, rows: int
) -> None:
    found = together(name, lines, search, threads, rows)

    assert found == [alone(name, one, search) for one in lines]


@settings(max_examples=5, deadline=None)
@given(lines=st.lists(LINE, min_size=1, max_size=3), threads=st.integers(2, 3))
def test_threads_that_share_each_step_change_no_bit(lines: list[Line], threads: int) -> None:
    for one in lines:
        assert together("wide int8", [one], "beam", threads)[0] == alone("wide int8", one, "beam")


LISTED = st.tuples(LINE, st.frozensets(WORD, max_size=9) | st.frozensets(WORD, min_size=60, max_size=VOCAB - 5))
"""A line, and words that it may use besides its end and its prefix: some, or around one and two blocks of 64."""


@pytest.mark.parametrize("name", PACKED)
@settings(max_examples=12, deadline=None)
@given(
    some=st.lists(LISTED, min_size=1, max_size=12),
    search=st.sampled_from(sorted(SEARCHES)),
    threads=st.integers(1, 4),
    rows=st.sampled_from([1, 4, 9, 23, 64]),
)
def test_shortlists_of_neighbours_change_no_bit(
    name: str, some: list[tuple[Line, frozenset[int]]], search: str, threads: int, rows: int
) -> None:
    lines = [one for one, _ in some]
    lists = [sorted({EOS, *one.prefix, *words}) for one, words in some]
    found = together(name, lines, search, threads, rows, lists)

    for one, words, hypotheses in zip(lines, lists, found, strict=True):
        assert hypotheses == together(name, [one], search, lists=[words])[0]
        assert all(set(hypothesis.tokens) <= set(words) for hypothesis in hypotheses)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_that_share_a_long_shortlist_change_no_bit(threads: int) -> None:
    """So long that it is gathered by several threads, and the products of a row are shared too."""
    one, words = line([5, 9, 40], [], 14), [EOS, *range(4, 40 * VOCAB, 2)]
    found = together("wide int8", [one], "beam", threads, lists=[words])

    assert found == together("wide int8", [one], "beam", lists=[words])
    assert found[0][0].tokens and set(found[0][0].tokens) <= set(words)


@settings(max_examples=10, deadline=None)
@given(groups=st.lists(LINES, min_size=2, max_size=4), search=st.sampled_from(sorted(SEARCHES)))
def test_callers_at_the_same_time_change_no_bit(groups: list[list[Line]], search: str) -> None:
    with ThreadPoolExecutor(len(groups)) as callers:
        found = list(callers.map(lambda lines: together("modern int8", lines, search), groups))

    assert found == [[alone("modern int8", one, search) for one in lines] for lines in groups]


@settings(max_examples=20, deadline=None)
@given(lines=st.lists(LINE, max_size=30), threads=st.integers(1, 4), rows=st.integers(1, 64))
def test_every_line_has_its_own_targets_in_its_place(lines: list[Line], threads: int, rows: int) -> None:
    found = together("grouped", lines, "beam", threads, rows)

    assert len(found) == len(lines)
    for one, hypotheses in zip(lines, found, strict=True):
        assert 1 <= len(hypotheses) <= 3
        for hypothesis in hypotheses:
            assert len(hypothesis.token_log_probs) == len(hypothesis.tokens) + 1 <= one.limit
            assert tuple(hypothesis.tokens[: len(one.prefix)]) == one.prefix
            assert hypothesis.log_prob == pytest.approx(sum(hypothesis.token_log_probs))
            assert all(4 <= token < VOCAB or token == 1 for token in hypothesis.tokens)
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)


def test_nothing_in_nothing_out() -> None:
    assert together("paper", [], "beam") == []


def test_the_cases_are_not_trivial() -> None:
    """Every source makes other numbers, most other words, and sentences leave the batch at different steps."""
    draw = torch.Generator().manual_seed(4)
    lines = [line(torch.randint(4, VOCAB, (n,), generator=draw).tolist(), [], 14) for n in (1, 3, 20, 7, 12, 2, 9, 30)]
    words, lengths = 0, set()
    for name in PACKED:
        found = [hypotheses[0] for hypotheses in together(name, lines, "beam")]
        assert len({hypothesis.score for hypothesis in found}) == len(lines), name
        words += len({tuple(hypothesis.tokens) for hypothesis in found})
        lengths |= {len(hypothesis.tokens) for hypothesis in found}
    assert words > 5 * len(PACKED) and len(lengths) > 3


# ------------------------------------------------------------------------------------------------------ the whole lines

ODD = ["", " ", "\t", "\u2028", "\x85", "\r", "\u3000", "one\u2028two", "a\x85b\r", "x\ny"]
WORDS = ["zero", "one", "two", "three", "four", "five", "nine", "x", "été", "12"]
SENTENCES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=13).map(" ".join)


@functools.cache
def translator(quantize: Literal["int8", "none"]) -> Translator:
    """The golden model, on the engine."""
    golden = Path(__file__).parents[1] / "golden" / "model_v1"
    with tempfile.TemporaryDirectory() as folder:
        model = shutil.copytree(golden, Path(folder, "model"))
        return Translator.load(model, engine="native", quantize=quantize, threads=1)


@functools.cache
def own_translation(quantize: Literal["int8", "none"], text: str) -> Translation:
    return translator(quantize).translate([text], nbest=2)[0]


@settings(max_examples=40, deadline=None)
@given(
    lines=st.lists(SENTENCES | st.sampled_from(ODD) | st.text(max_size=9), max_size=11),
    window=st.sampled_from([1, 2, 5, 2000]),
    batch_tokens=st.sampled_from([1, 30, 4000]),
    quantize=st.sampled_from(["int8", "none"]),
)
def test_n_lines_in_n_translations_out_each_as_if_it_were_alone(
    lines: list[str], window: int, batch_tokens: int, quantize: Literal["int8", "none"]
) -> None:
    out = list(translator(quantize).stream(lines, window=window, batch_tokens=batch_tokens, nbest=2))

    assert [translation.source for translation in out] == lines
    assert out == [own_translation(quantize, text) for text in lines]
    assert not any({"\n", "\r"} & set(translation.text) for translation in out)
    for text, translation in zip(lines, out, strict=True):
        assert text.strip() or translation.flags == ("empty_source",)
