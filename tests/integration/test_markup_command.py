"""`dragoman translate --format`: one document in, one document out, byte for byte what is not translated."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman import Translator
from dragoman.markup import translate_html, translate_xml
from small_run import Cli, trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("markup"))


PAGE = (
    "\ufeff<!DOCTYPE html>\r\n<p>one <b>two</b> three</p>\r\n\r\n"
    '<code>two</code><!-- four --><img alt="five six"> &amp; 7<p>eight\r\nnine &lt; one'
)


def test_a_page_from_standard_input_or_a_file(cli: Cli, run: Path, tmp_path: Path) -> None:
    code, out, _ = cli("translate", run, "--format", "html", stdin=PAGE.encode())
    (expected,) = translate_html(Translator.load(run), [PAGE[1:]])
    assert code == 0 and out.decode() == f"\ufeff{expected}"
    assert out.startswith("\ufeff<!DOCTYPE html>\r\n<p>".encode()) and b"<code>two</code><!-- four -->" in out
    assert b'alt="five six"' in out and not out.endswith(b"\n")
    (tmp_path / "page.html").write_bytes(PAGE.encode())
    files = ["--input", tmp_path / "page.html", "--output", tmp_path / "out.html"]
    code, nothing, _ = cli("translate", run, "--format", "html", *files)
    assert code == 0 and nothing == b"" and (tmp_path / "out.html").read_bytes() == out
    code, out, _ = cli("translate", run, "--format", "html", "--attributes", "--beam", "1", stdin=PAGE.encode())
    (expected,) = translate_html(Translator.load(run), [PAGE[1:]], attributes=True, beam=1)
    assert code == 0 and out.decode() == f"\ufeff{expected}" and b'alt="five six"' not in out


def test_an_xml_document(cli: Cli, run: Path) -> None:
    document = "<?xml version='1.0'?>\n<d>\n <t>one two</t>\n <t>three <b>four</b></t>\n</d>\n"
    code, out, _ = cli("translate", run, "--format", "xml", "--no-split", stdin=document.encode())
    assert code == 0 and [out.decode()] == translate_xml(Translator.load(run), [document], split=False)
    assert cli("translate", run, "--format", "xml", stdin=b"") == (0, b"", cli("translate", run, stdin=b"")[2])


@pytest.mark.parametrize(
    ("args", "stdin", "code", "words"),
    [
        (["--format", "htm"], b"", 2, "--format 'htm'; accepted: text, html, xml"),
        (["--format", "xml", "--attributes"], b"", 2, "--attributes: only for --format html"),
        (["--attributes"], b"", 2, "--attributes: only for --format html"),
        (["--format", "html", "--jsonl", "--nbest", "2"], b"", 2, "--jsonl, --nbest: not supported with --format html"),
        (["--format", "html", "--prefix", "a"], b"", 2, "--prefix: not supported"),
        (["--format", "html", "--input", ".", "--output", "x"], b"", 2, "bulk translation: not supported"),
        (["--format", "html", "--input", "nowhere.html"], b"", 1, "nowhere.html: missing. Specify one file"),
        (["--format", "html"], b"<p>\n\xff", 1, "standard input, line 2: byte 0xff at byte 0 of the line is not valid"),
        (["--format", "xml"], b"<a>\n<b>", 1, "text 1, line 2, column 6: mismatched tag; accepted: well-formed XML"),
    ],
)
def test_what_is_refused(cli: Cli, run: Path, args: list[str], stdin: bytes, code: int, words: str) -> None:
    found, out, err = cli("translate", run, *args, stdin=stdin)
    assert (found, out) == (code, b"") and words in err
