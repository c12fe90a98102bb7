"""Sentences with tags: CoNLL-U without multiword tokens, word/tag, and one clear message per invalid line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dragoman.data.readers.labelled import TaggedSentence, read_tagged, tagged_row
from dragoman.errors import DataError
from dragoman.tokenizers import BOS, EOS, PAD
from small_run import write_lines


def row(number: str, word: str, upos: str, xpos: str = "_") -> str:
    return "\t".join([number, word, word, upos, xpos, *["_"] * 5])


CONLLU = [
    "# sent_id = 1",
    row("1-2", "don't", "_"),
    row("1", "do", "AUX", "VBP"),
    row("2", "n't", "PART", "RB"),
    row("2.1", "gone", "VERB", "VB"),
    row("3", "#", "SYM", "$"),
    "",
    "",
    "# sent_id = 2",
    row("1", "ice cream", "NOUN", "NN"),
]


@pytest.mark.parametrize("suffix", [".conllu", ".conllu.gz"])
def test_ranges_and_empty_nodes_are_no_words(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    text = "\n".join(CONLLU).encode()
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    assert list(read_tagged(path)) == [
        TaggedSentence(("do", "n't", "#"), ("AUX", "PART", "SYM"), 3),
        TaggedSentence(("ice cream",), ("NOUN",), 10),
    ]
    assert [s.tags for s in read_tagged(path, "xpos")] == [("VBP", "RB", "$"), ("NN",)]


def test_the_tag_follows_the_last_slash(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.txt", ["1/2/cd of/in", "", "``/`` ,/,"])
    assert [tuple(s) for s in read_tagged(path)] == [
        (("1/2", "of"), ("cd", "in"), 1),
        (("``", ","), ("``", ","), 3),
    ]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("a.conllu", [CONLLU[2], "2\tx\ty"], r"a\.conllu, line 2: 3 columns; accepted: the 10 of CoNLL-U"),
        ("a.conllu", [row("one", "x", "X")], r"line 1: column 1 is \"one\"; accepted: the number of a word"),
        ("a.conllu", ["", row("1", "x", "_")], r"line 2: \"x\" has no tag in the column upos"),
        ("a.txt", ["a/b", "c/d e"], r"a\.txt, line 2: \"e\" is not word/tag"),
        ("a.txt", ["a/"], r"line 1: \"a/\" is not word/tag"),
    ],
)
def test_a_bad_line_is_named(name: str, lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        list(read_tagged(write_lines(tmp_path / name, lines)))


def test_a_tag_belongs_to_the_first_piece() -> None:
    ids, tags = tagged_row([[7], [8, 9, 10], [11, 12]], [3, 1, 2])
    assert ids == [BOS, 7, 8, 9, 10, 11, 12, EOS]
    assert tags == [PAD, 3, 1, PAD, PAD, 2, PAD, PAD]


def test_the_treebank_of_the_recipe(data_root: Path) -> None:
    sentences = list(read_tagged(data_root / "ud_english_ewt" / "train.conllu.gz"))
    assert len(sentences) == 12_544
    assert len({tag for s in sentences for tag in s.tags}) == 17
    assert all(len(s.words) == len(s.tags) > 0 for s in sentences)
