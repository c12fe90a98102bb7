"""`dragoman translate --input FILE.docx --output OUT.docx`: the model translates the text of a document."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import docx
import pytest

from dragoman.pipelines.translation import Translator
from small_run import Cli

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a small model, because models of the repository stay as they are."""
    return Path(shutil.copytree(GOLDEN / "model_v1", tmp_path_factory.mktemp("golden") / "model"))


def test_a_document_has_the_translations_of_its_paragraphs(cli: Cli, model: Path, tmp_path: Path) -> None:
    texts = ["one two three", "four five", "seven eight nine"]
    document = docx.Document()
    for text in texts:
        document.add_paragraph(text, style="List Bullet")
    document.add_paragraph("12.5")
    document.save(str(tmp_path / "a.docx"))
    code, out, err = cli(
        "translate", model, "--input", tmp_path / "a.docx", "--output", tmp_path / "b.docx", "--beam", "2"
    )

    assert (code, out) == (0, b"") and f"{tmp_path / 'b.docx'}: 3 texts translated" in err
    after = docx.Document(str(tmp_path / "b.docx")).paragraphs
    expected = [one.text for one in Translator.load(model).translate(texts, beam=2)]
    assert [one.text for one in after] == [*expected, "12.5"]
    assert [one.style.name for one in after[:3]] == ["List Bullet"] * 3
    assert expected != texts


def test_columns_of_a_table_and_output_folders(cli: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "a.csv").write_text("a,b\none two,three four\n")
    code, _, err = cli("translate", model, "--input", tmp_path / "a.csv", "--output", tmp_path / "out", "--column", "b")
    assert code == 0, err
    [text] = Translator.load(model).translate(["three four"])
    assert list(csv.reader(io.StringIO((tmp_path / "out" / "a.csv").read_text()))) == [
        ["a", "b"],
        ["one two", text.text],
    ]


def test_a_damaged_document_leaves_no_output(cli: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(b"PK\x03\x04 not a document")
    code, _, err = cli("translate", model, "--input", tmp_path / "a.docx", "--output", tmp_path / "b.docx")
    assert code == 1 and f"{tmp_path / 'a.docx'}: not a complete zip archive" in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.docx"]
