"""The columns of text in a table, and a single file or folder as the text of `dragoman new`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.advice.doctor import diagnose
from dragoman.advice.source_text import open_text
from dragoman.config import parse_config
from dragoman.data.readers import tables
from dragoman.data.readers.rows import Row
from dragoman.data.readers.tables import text_keys
from dragoman.errors import DataError, UsageError
from dragoman.training.run import check_files
from pair_files import FORMATS, HEADED, write_csv, write_tmx
from small_run import write_lines

ENGLISH = [f"The dog is in the house with number {i} and was there." for i in range(30)]
PAIRS = [(text, f"Der Hund ist in dem Haus Nummer {i} und war da.") for i, text in enumerate(ENGLISH)]


@pytest.mark.parametrize("name", FORMATS)
def test_a_single_file_or_folder_is_the_text_of_a_new_configuration(name: str, tmp_path: Path) -> None:
    write, _ = FORMATS[name]
    path = write(tmp_path / name, PAIRS)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    text = open_text(path, None, None, scratch, print)
    # the archive of OPUS names German first
    assert text.languages == (("de", "en") if name == "a.zip" else ("en", "de"))
    pairs = [(pair.source, pair.target) for pair in text.pairs()]
    assert pairs == ([(target, source) for source, target in PAIRS] if name == "a.zip" else PAIRS)
    if name in ("a.zip", "a.tmx"):
        text = open_text(path, None, ("de", "en"), scratch, print)
        assert next(text.pairs()).source == PAIRS[0][1]


def test_languages_named_by_keys_need_no_frequent_words(tmp_path: Path) -> None:
    rows = [json.dumps({"fr": f"x {i}", "nl": f"y {i}"}) for i in range(30)]
    path = write_lines(tmp_path / "a.jsonl", rows)
    assert open_text(path, None, None, tmp_path, print).languages == ("fr", "nl")
    path = write_tmx(tmp_path / "a.tmx", [("x", "y")], ("fr", "nl"))
    assert open_text(path, None, None, tmp_path, print).languages == ("fr", "nl")


def test_columns_of_text_are_found(tmp_path: Path) -> None:
    pairs = [(f"text {i}", f"Text {i}") for i in range(30)]
    said: list[str] = []
    path = write_csv(tmp_path / "a.csv", [HEADED, *((str(i), *pair) for i, pair in enumerate(pairs))])
    assert text_keys(path, said.append) == ("english", "de")
    assert said == [f"{path}: source text in column english, target text in column de"]
    for rows in (
        [("eng", f"text{i}", f"Satz{i}") for i in range(30)],  # "eng" is no header: it is repeated
        [
            ("de" if i % 2 else "en", one, f"ein {other}") for i, (one, other) in enumerate(pairs)
        ],  # nor is a record with sentences
    ):
        assert text_keys(write_csv(path, rows), said.append) == (1, 2)
    lines = [json.dumps({"lang": "en-de", "translation": {"en": one, "de": other}}) for one, other in pairs]
    assert text_keys(write_lines(tmp_path / "a.jsonl", lines), said.append) == ("translation.en", "translation.de")
    write_csv(path, [("1", one) for one, _ in pairs])
    with pytest.raises(
        DataError, match=r"a\.csv: 1 column of text \('1 text 0'\); accepted: a source text and a target"
    ):
        text_keys(path, said.append)


def test_the_sample_of_a_large_table_is_spread_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.data.readers.tables._SAMPLE", 50)
    rows = [Row(i, "", ("Yes" if i < 100 else f"yes {i}", f"ja {i}")) for i in range(1000)]
    numbers = [row.number for row in tables._sample(rows)]
    assert numbers == list(range(0, 1000, 16))
    path = write_csv(tmp_path / "a.csv", [row.texts for row in rows])
    assert text_keys(path, print) == (0, 1)  # although the first 100 rows repeat a value


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"missing: not a configuration; use a \.toml file, .* or a folder of \.parquet"
    ):
        diagnose(tmp_path / "missing")
    with pytest.raises(UsageError, match=r"no such file: .*missing\.csv"):
        diagnose(tmp_path / "missing.csv")
    data = {"root": str(tmp_path), "train": [{"path": "missing.parquet"}, {"source": ".", "target": "."}]}
    with pytest.raises(UsageError, match=r"(?s)missing\.parquet.*train\.1\.source: no such file"):
        check_files(parse_config({"data": data}))
