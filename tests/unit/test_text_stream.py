"""Text for language models: every character once, in windows that never reach across two texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import TokenizerConfig
from dragoman.data.batching import plan_buckets
from dragoman.data.store.text import TextStream, read_paragraphs, read_stream
from dragoman.decoding.backend import batches_within
from dragoman.tokenizers import EOS, UNK, Tokenizer, learn_tokenizer
from small_run import write_lines

LINES = ["First of all:", "  a line", "", "", "Second\u2028part", " ", "Third", "with two"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "text", LINES)


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_paragraphs_are_runs_of_lines_that_are_not_blank(path: Path) -> None:
    assert list(read_paragraphs(path)) == ["First of all:\n  a line", "Second\u2028part", "Third\nwith two"]


def test_a_stream_is_the_text_itself(path: Path) -> None:
    stream = read_stream([path, path], "stream", letters)
    assert "".join(map(chr, stream.ids)) == 2 * path.read_text(encoding="utf-8")
    assert stream.characters == len(stream.ids) == stream.bounds[-1] and len(stream.bounds) == 2


@pytest.mark.parametrize(("form", "texts"), [("lines", 5), ("paragraphs", 3)])
def test_texts_end_with_the_end_of_sentence(path: Path, form: str, texts: int) -> None:
    stream = read_stream([path], form, letters)
    assert len(stream.bounds) == texts + 1 and stream.ids[stream.bounds[1:] - 1].tolist() == [EOS] * texts
    assert (stream.ids == EOS).sum() == texts
    # The end of a text stands for the end of its last line, so that characters are those of the file.
    assert stream.characters == len(stream.ids)
    assert stream.characters == sum(len(line) + 1 for line in LINES if line.strip())


def test_no_text_gives_no_window(tmp_path: Path) -> None:
    for form in ("stream", "lines", "paragraphs"):
        stream = read_stream([write_lines(tmp_path / "empty", [])], form, letters)
        assert stream.spans(5).shape == (0, 2)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 9), st.integers(0, 8))
def test_windows_hold_every_id_once(lengths: list[int], block: int, offset: int) -> None:
    bounds = np.cumsum([0, *lengths])
    stream = TextStream(np.arange(bounds[-1], dtype=np.uint32), bounds, int(bounds[-1]))
    spans = stream.spans(block, min(offset, block - 1))
    assert [i for span in spans for i in stream.window(span)] == list(range(bounds[-1]))
    assert all(1 <= last - first <= block for first, last in spans)
    assert all(not (first < cut < last) for first, last in spans for cut in bounds)


def test_windows_begin_where_the_offset_says() -> None:
    stream = TextStream(np.arange(11, dtype=np.uint32), np.array([0, 11]), 11)
    assert stream.spans(4).tolist() == [[0, 4], [4, 8], [8, 11]]
    assert stream.spans(4, 3).tolist() == [[0, 3], [3, 7], [7, 11]]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(16, 90), st.integers(0, 5))
def test_buckets_hold_every_example_once_within_the_budget(lengths: list[int], budget: int, seed: int) -> None:
    widths = np.array(lengths)
    batches = plan_buckets(widths, budget, np.random.default_rng(seed))
    assert sorted(n for batch in batches for n in batch.tolist()) == list(range(len(lengths)))
    assert all(len(b) == 1 or len(b) * widths[b].max() <= budget for b in batches)
    again = plan_buckets(widths, budget, np.random.default_rng(seed))
    assert [b.tolist() for b in batches] == [b.tolist() for b in again]


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 90))
def test_batches_contain_every_index_once_the_largest_first(sizes: list[int], budget: int) -> None:
    batches = list(batches_within(sizes, budget))
    places = [place for batch in batches for place in batch]
    assert sorted(places) == list(range(len(sizes)))
    assert [sizes[place] for place in places] == sorted(sizes, reverse=True)
    assert all(len(b) == 1 or len(b) * sizes[b[0]] <= budget for b in batches)


def test_batches_may_be_exactly_as_large_as_the_budget() -> None:
    planned = plan_buckets(np.full(7, 5), 15, np.random.default_rng(1))
    assert sorted(map(len, planned)) == [1, 3, 3]
    assert list(map(len, batches_within([5] * 7, 15))) == [3, 3, 1]


# --------------------------------------------------------------------------------------------- pieces of whole texts

SPACED = "  Two  spaces,\n\n a blank line …\tand a tab \n"


def tokenizer(kind: str, lines: list[str], size: int = 60) -> Tokenizer:
    settings = {"kind": kind, "vocab_size": size, "byte_fallback": False, "normalization": "identity"}
    return learn_tokenizer(TokenizerConfig.model_validate(settings), lines, lossless=True)


@pytest.mark.parametrize(("kind", "size"), [("char", 60), ("bpe", 40), ("unigram", 25)])
def test_line_ends_and_spaces_come_back(kind: str, size: int) -> None:
    own = tokenizer(kind, SPACED.split("\n"), size)
    ids = own.encode_target(SPACED)
    assert UNK not in ids and own.decode_target(ids) == SPACED
    assert own.decode_target([i for line in SPACED.split("\n")[:-1] for i in own.encode_target(f"{line}\n")]) == SPACED


def test_a_character_is_a_piece() -> None:
    own = tokenizer("char", SPACED.split("\n"))
    assert len(own.encode_target(SPACED)) == len(SPACED) + 1
    assert own.target_size == 4 + len(set(SPACED))


def test_characters_stay_as_they_are_without_asking_for_it() -> None:
    own = learn_tokenizer(TokenizerConfig(kind="char", byte_fallback=False), SPACED.split("\n"))
    assert own.decode_target(own.encode_target(SPACED)) == SPACED


def test_the_vocabulary_is_the_same_wherever_the_text_lay() -> None:
    first, second = (tokenizer("bpe", SPACED.split("\n"), 40) for _ in range(2))
    assert first.files() == second.files()
