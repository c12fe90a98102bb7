"""What holds for every format in the table of formats, without more than a document of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from dragoman.cli import app
from dragoman.documents import FORMATS, SUFFIXES, Format, translate_bytes, translate_document
from dragoman.io.lines import NOT_LINES
from sample_documents import PieceTranslator, document, members, translated, upper, zip_of

ROOT = Path(__file__).parents[2]
EVERY = pytest.mark.parametrize("format", FORMATS.values(), ids=lambda format: format.name)
TEXTS = ["One dog runs.", "I see 25 dogs there.", "Two 99 cats.", "One dog runs."]
"""Of which the second and third have numbers, which `lossy` drops."""


def lossy() -> PieceTranslator:
    return PieceTranslator(lambda pieces: [piece for piece in pieces if not piece.isdigit()])


def test_the_documentation_and_the_help_list_the_formats_of_the_table() -> None:
    page = (ROOT / "docs" / "documents.md").read_text(encoding="utf-8")
    rows = [
        f"| {' '.join(f'`{suffix}`' for suffix in format.suffixes)} | {format.translated} | {format.kept} |"
        for format in FORMATS.values()
    ]
    _, _, table = page.partition("| suffix | translated | kept |\n|---|---|---|\n")
    assert table.partition("\n\n")[0].split("\n") == rows
    command: Any = get_command(app)
    shown = command.get_command(None, "translate").help
    assert [format.name for format in FORMATS.values() if " ".join(format.suffixes) + ": " not in shown] == []
    assert sorted(SUFFIXES) == sorted(suffix for format in FORMATS.values() for suffix in format.suffixes)
    assert {*SUFFIXES} - {".txt", ".text"} <= {*NOT_LINES}  # not translated line by line in a folder


@EVERY
def test_reports_count_the_strings_and_say_where_flags_are(format: Format, tmp_path: Path) -> None:
    source = tmp_path / f"a{format.suffixes[-1]}"
    source.write_bytes(document(format.name, TEXTS))
    report = translate_document(lossy(), source, tmp_path / f"b{source.suffix}")
    assert (report.segments, report.flags) == (len(TEXTS), {"numbers": 2})
    assert [(text.unit, text.flags, text.file) for text in report.flagged] == [
        (number, ("numbers",), source.name) for number in (2, 3)
    ]
    lines = source.read_bytes().split(b"\n")
    where = [next((n for n, line in enumerate(lines, 1) if text.encode() in line), None) for text in TEXTS[1:3]]
    assert [text.line for text in report.flagged] == (where if format.has_lines else [None, None])


@EVERY
def test_reports_have_no_flags_without_faults(format: Format) -> None:
    _, report = translate_bytes(upper(), document(format.name, TEXTS), format.name)
    assert (report.segments, report.characters, report.flagged) == (4, sum(map(len, TEXTS)), [])


@pytest.mark.parametrize(
    ("format", "source"),
    [
        ("md", "Keep one ([docs/data.md](data.md#a)). Go on.\n"),
        ("md", "| one (docs) | texts ([decoding.md](d.md)) |\n|---|---|\n"),
        ("html", "<p>Keep one (<a href=x>docs/data.md</a>, <b>a.b@example.org</b>). Go on.</p>"),
    ],
)
def test_tags_stay_around_spans_in_brackets(format: str, source: str) -> None:
    kept = re.findall(r"\(\[.*?\)|<a.*</b>", source)
    assert kept and all(one in translated(format, source).decode() for one in kept)


@pytest.mark.parametrize(
    ("tag", "changed"),
    [
        ('<html lang="en">', '<html lang="de">'),
        ("<HTML class=a LANG='en-US' xml:lang = en>", "<HTML class=a LANG='de' xml:lang = de>"),
        ('<html xml:lang="de-AT">', '<html xml:lang="de-AT">'),
        ("<html>", "<html>"),
        ('<body lang="en">', '<body lang="de">'),
    ],
)
def test_pages_name_the_target_language(tag: str, changed: str) -> None:
    assert translated("html", f"{tag}<p lang=fr>one").decode() == f"{changed}<p lang=fr>ONE"
    assert translated("html", f"{tag}<p>7").decode() == f"{tag}<p>7"
    chinese = upper()
    chinese.describe_data(None, ("en", "zh_Hans"))
    assert translated("html", "<html lang=en>one", chinese) == b"<html lang=zh-Hans>ONE"


def test_books_name_the_target_language() -> None:
    book = members(document("epub", TEXTS))
    package = "<package><metadata><dc:language xmlns:dc='a'>en</dc:language></metadata>"
    out = members(
        translated("epub", zip_of({**book, "a/b.opf": book["a/b.opf"].decode().replace("<package>", package)}))
    )
    assert b"<dc:language xmlns:dc='a'>de</dc:language>" in out["a/b.opf"] and b' xml:lang="de"' in out["c.xhtml"]
