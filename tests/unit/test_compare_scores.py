"""Scores with confidence: what sacreBLEU says, and buckets of lengths that hold every line once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dragoman.errors import DataError
from dragoman.evaluation.compare.runs import length_bounds, read_eval_set, score_translations
from small_run import digit_pairs, write_lines


@given(st.lists(st.integers(0, 300), min_size=1, max_size=400))
def test_buckets_are_few_and_none_is_nearly_empty(lengths: list[int]) -> None:
    bounds = length_bounds(lengths)
    assert list(bounds) == sorted(set(bounds)) and len(bounds) <= 8
    edges = (-1, *bounds, 10**9)
    sizes = [sum(a < n <= b for n in lengths) for a, b in itertools.pairwise(edges)]
    assert sum(sizes) == len(lengths)
    assert min(sizes) >= min(20, len(lengths) / 20)


def test_buckets_of_usual_sentences_are_of_five_words() -> None:
    lengths = [length for length in range(4, 31) for _ in range(40)]
    assert length_bounds(lengths) == (5, 10, 15, 20, 25)


def test_scores_and_intervals_are_those_of_sacrebleu(tmp_path: Path) -> None:
    pairs = digit_pairs(60, longest=12)
    references = [target for _, target in pairs]
    write_lines(tmp_path / "test.src", [source for source, _ in pairs])
    write_lines(tmp_path / "test.ref", references)
    texts = [text if i % 3 else text.replace("un", "sies") for i, text in enumerate(references)]
    material = read_eval_set(tmp_path / "test.src", tmp_path / "test.ref")
    found = score_translations(texts, material, samples=200)
    for metric, interval in ((BLEU(force=True), found.bleu), (CHRF(), found.chrf)):
        theirs: Any = metric.corpus_score(texts, [references], n_bootstrap=200)
        assert (interval.score, interval.half) == (theirs.score, theirs._ci)
    assert 0 < found.bleu.half < 20 and found.bleu.score < 100
    assert "bs:200" in found.bleu_signature and "chrF" not in found.bleu_signature
    assert sum(bucket.sentences for bucket in found.by_length) == 60
    assert found.by_length[-1].high is None and found.by_length[0].low == 1
    one = [i for i, n in enumerate(material.lengths) if n <= material.bounds[0]]
    alone = BLEU(force=True).corpus_score([texts[i] for i in one], [[references[i] for i in one]])
    assert found.by_length[0].bleu.score == pytest.approx(alone.score)


def test_bleu_is_counted_with_the_tokenizer_given(tmp_path: Path) -> None:
    references = ["他在公园里和朋友一起踢足球。", "我昨天买了一本新的书。"]
    write_lines(tmp_path / "zh", references)
    material = read_eval_set(tmp_path / "zh", tmp_path / "zh")
    found = score_translations(["他在公园里和朋友们一起踢足球。", "我昨天买了一本新书。"], material, 2, "zh")
    assert found.bleu.score == pytest.approx(81.22, abs=0.01) and "tok:zh" in found.bleu_signature
    assert found.by_length[0].bleu.score > 0


def test_titles_of_buckets(tmp_path: Path) -> None:
    sources = [" ".join(["word"] * n) for n in range(1, 41) for _ in range(3)]
    write_lines(tmp_path / "a", sources)
    material = read_eval_set(tmp_path / "a", tmp_path / "a")
    titles = [bucket.title for bucket in score_translations(sources, material, 2).by_length]
    assert titles == ["1–5", "6–10", "11–15", "16–20", "21–25", "26–30", "31–35", "36+"]


def test_text_without_spaces_is_measured_in_characters(tmp_path: Path) -> None:
    write_lines(tmp_path / "zh", ["他在公园里和他的朋友们一起踢足球到很晚才回家去吃晚饭"] * 3)
    material = read_eval_set(tmp_path / "zh", tmp_path / "zh")
    assert material.unit == "characters" and material.lengths == (26, 26, 26)


def test_an_empty_test_set_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "a", [])
    with pytest.raises(DataError, match="empty; accepted: at least 1 line"):
        read_eval_set(tmp_path / "a", tmp_path / "a")
