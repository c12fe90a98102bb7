"""USFM as parallel text: verses of two translations, by book, chapter and number."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.advice.doctor import diagnose
from dragoman.data.corpus import CorpusSpec, read_pairs
from dragoman.errors import DataError, UsageError

SOURCE = r"""\id GEN a book
\h Genesis
\ip An introduction, \it no\it* verse.
\c 1
\s1 The start
\v 1 In the \w beginning|lemma="a"\w*,\x - \xo 1:1 \xt Ps 1\x* God\f + \fr 1:1 \ft or \+nd gods\+nd*
more of the note\f* \add made\add* it.
\q1 And saw //
\q2 it~all.\fig a map|src="a.jpg"\fig*
\s1 A heading \f + \ft note\f*
\v 2-3 Light \zaln-s |x="a"\*was\zaln-e\*. \s Heading \p \it And\it* dark.
\v 4a One
\b
\v 4b day.
\v 5 ...
\v 6 Only here.
\v 7-8 Half of it is missing.
\c 2
\v 1 The end.
\id EXO
\c 1
\v 1 Names.
"""
TARGET = "\\id gen\n\\c 1\n\\v 1 起初\n\\q1 神创造\n\\v 2 光\n\\v 3 和暗\n\\v 4 一天\n\\v 5 五\n\\v 7 七\n"
TARGET += "\\c 2\n\\v 1 完\n\\v 2 只在这里\n"


def usfm(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    return path


def test_verses(tmp_path: Path) -> None:
    one, other = usfm(tmp_path / "a.usfm", SOURCE), usfm(tmp_path / "b.SFM", TARGET)
    messages: list[str] = []
    pairs = [(pair.source, pair.target) for pair in read_pairs(CorpusSpec(one, other), messages.append)]
    assert pairs == [
        ("In the beginning, God made it. And saw it\xa0all.", "起初神创造"), ("Light was. And dark.", "光和暗"),
        ("One day.", "一天"), ("The end.", "完"),
    ]  # fmt: skip
    account = "read 8 verses = 4 pairs + without text 1 + only in the source 3; only in the target 2"
    assert messages == [f"{one} | {other}: {account} (books on one side only: EXO)"]
    books = SOURCE.split("\\id EXO")
    usfm(tmp_path / "one/02.usfm", f"\\id EXO{books[1]}"), usfm(tmp_path / "one/01.usfm", books[0])
    usfm(tmp_path / "other/b.usfm", TARGET), usfm(tmp_path / "other/FRT.usfm", "\\id FRT\n\\p A preface.\n")
    folders = CorpusSpec(tmp_path / "one", tmp_path / "other")
    assert [(pair.source, pair.target) for pair in read_pairs(folders)] == pairs and len(folders.files) == 4
    assert "read 4 = kept 3 + ratio 1" in diagnose(tmp_path / "one", tmp_path / "other", languages=("en", "zh")).account


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\\c 1\n\\v 1 a\n\\v 1 a", r"a.usfm, line 2: \\v 1 before \\id and .*\nA book begins with"),
        (
            "\\id GEN\n\\v 1 a\n\\v 3-2 b\n\\v 1-2 c",
            r"3: \\v 3-2 is not the .*\n.*4: GEN 1:1 is in .*a.usfm, line 2 as",
        ),
        ("\\id EXO\n\\v 1 a", r"a.usfm and .*b.usfm: no verse has text on both sides \(books: EXO and GEN\)"),
        ("\\id GEN\n\\p a", r"\(books: none and GEN\)"),
    ],
)
def test_invalid_books(text: str, message: str, tmp_path: Path) -> None:
    one, other = usfm(tmp_path / "a.usfm", text), usfm(tmp_path / "b.usfm", TARGET)
    with pytest.raises(DataError, match=message):
        list(read_pairs(CorpusSpec(one, other)))
    with pytest.raises(UsageError, match=r"a\.usfm: a \.usfm file is not text .* or two in USFM"):
        CorpusSpec(one, tmp_path / "b.txt")
