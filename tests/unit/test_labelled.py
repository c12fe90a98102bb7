"""Texts with labels in all formats, and one clear message per invalid line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.data.readers.labelled import read_labelled, text_source
from dragoman.errors import DataError, ModelFolderError
from dragoman.tokenizers import BOS, LABELS_FILE, LabelVocabulary
from small_run import write_lines

FORMS = {
    "a.tsv": ["good\ta fine\tfilm", "", "bad\tnot at all"],
    "a.txt": ["good a fine\tfilm", "", "bad not at all"],
    "a.csv": ['"good","a fine","film"', "", 'bad,"not at', 'all"'],
    "a.jsonl": ['{"text": "a fine film", "label": "good"}', "", '{"label": "bad", "text": "not at all", "more": 1}'],
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_result(name: str, tmp_path: Path) -> None:
    found = list(read_labelled(write_lines(tmp_path / name, FORMS[name])))
    assert [(e.label, " ".join(e.text.split())) for e in found] == [("good", "a fine film"), ("bad", "not at all")]
    assert [e.line for e in found] == [1, 4 if name == "a.csv" else 3]


def test_a_number_may_be_a_label(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ['{"text": "x", "label": 3}'])
    assert [e.label for e in read_labelled(path)] == ["3"]


def test_a_line_end_inside_is_a_space(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [r'{"text": "a\nfine\nfilm", "label": "very\ngood"}'])
    assert [tuple(e) for e in read_labelled(path)] == [("very good", "a fine film", 1)]
    path = write_lines(tmp_path / "a.csv", ['"very', 'good","a fine', 'film"'])
    assert [tuple(e) for e in read_labelled(path)] == [("very good", "a fine film", 3)]


def test_a_csv_quote_is_read_as_csv_has_it(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", ['"1","He said ""no"", then left","at \\$4"'])
    assert [tuple(e) for e in read_labelled(path)] == [("1", 'He said "no", then left at \\$4', 1)]


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("a.tsv", ["good\tfine", "bad nothing"], r"a\.tsv, line 2: \"bad nothing\" is not a label and a text"),
        ("a.txt", ["good fine", "x", "y z"], r"a\.txt, line 2: \"x\" is not a label and a text; accepted in this file"),
        ("a.tsv", ["\tfine"], r"line 1: the label is empty"),
        ("a.tsv", ["good\t "], r"line 1: the text is empty"),
        ("a.csv", ["good,fine", "alone"], r"a\.csv, line 2: one column \(\"alone\"\)"),
        ("a.csv", ['good,"fine"x'], r"a\.csv, line 1: not CSV"),
        ("a.jsonl", ["{"], r"a\.jsonl, line 1: not JSON"),
        ("a.jsonl", ['{"label": "good"}'], r"line 1: .* has no text"),
        ("a.jsonl", ['{"text": "good"}'], r"line 1: .* has no label"),
        ("a.jsonl", ['["good", "fine"]'], r"line 1: .* has no text"),
        (
            "a.jsonl",
            [r'{"label": "good", "text": "\ud83d"}'],
            r"line 1: the text is invalid Unicode",
        ),
        ("a.jsonl", ["[" * 100_000], r"line 1: not JSON"),
    ],
)
def test_a_bad_line_is_named(name: str, lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        list(read_labelled(write_lines(tmp_path / name, lines)))


def test_the_class_token_is_added_if_it_is_pooled() -> None:
    assert text_source([7, 8], "first") == [BOS, 7, 8] and text_source([7, 8], "mean") == [7, 8]


def test_labels_are_numbered_from_one_and_come_back(tmp_path: Path) -> None:
    labels = LabelVocabulary(["bad", "gut", "漢"], patch_numbers=12)
    assert [labels.numbers[name] for name in labels.labels] == [1, 2, 3] and labels.label(3) == "漢"
    assert (labels.source_size, labels.target_size, labels.shared) == (12, 4, False)
    for name, content in labels.files().items():
        (tmp_path / name).write_bytes(content)
    again = LabelVocabulary.load(tmp_path)
    assert again.files() == labels.files() and again.labels == labels.labels and again.tokenizer is None


def test_damaged_labels_are_refused(tmp_path: Path) -> None:
    (tmp_path / LABELS_FILE).write_text('{"labels": ["a"]', encoding="utf-8")
    with pytest.raises(ModelFolderError, match=r"labels\.json: cannot be read"):
        LabelVocabulary.load(tmp_path)
