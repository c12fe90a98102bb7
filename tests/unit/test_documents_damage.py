"""Damaged documents: a message or a result, never another exception; what is not translated is not changed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from document_translator import PieceTranslator, longer, says, translated, upper
from dragoman.errors import DragomanError
from sample_documents import SAMPLES

PIECES = [bytes([one]) for one in b"<>\"'\n\r\\{}[]*_`|&,;\t#!()~ \0\xff"]
PIECES += [b"&amp;", b"%s", b"-->", b"<b>", b"</b>", b"\xef\xbb\xbf", b"msgid ", b"<!--", b"<![CDATA[", b"]]>", b"/>"]
PIECES += [b"</w:r>", b"<w:p>", b"1.", b"{n, plural,"]
SAME = ("txt", "srt", "csv", "tsv")


def damaged(data: bytes, draw: random.Random) -> bytes:
    own = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(own) + 1)
        inserted = draw.choice(PIECES)
        other = draw.randrange(len(own) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            del own[start : start + draw.randint(1, 10)]
        else:
            own[start:start] = inserted * draw.randint(1, 4) if kind < 3 else own[other : other + draw.randint(1, 40)]
    return bytes(own)


@pytest.mark.parametrize("format", SAMPLES)
def test_empty_translations_are_accepted(format: str) -> None:
    """A model may return nothing; a document without its text can still be read."""
    for sample in SAMPLES[format]:
        empty = translated(format, sample(bytes), says(""))
        assert translated(format, empty, upper()) or not empty.strip()


@pytest.mark.parametrize("format", SAMPLES)
def test_damage_is_reported_or_has_no_effect(format: str) -> None:
    """Formats without escapes lose no character, whatever they contain, if the translator changes nothing."""
    draw = random.Random(format)
    refused = 0
    for _ in range(150):
        sample = draw.choice(SAMPLES[format])
        data = sample(lambda content: damaged(content, draw))
        try:
            translated(format, data, longer())
            if format in SAME:
                same = translated(format, data, PieceTranslator(lambda pieces: pieces))
                assert Counter(same.translate(None, b" \t\r\n")) == Counter(data.translate(None, b" \t\r\n"))
        except DragomanError as error:
            assert str(error)
            refused += 1
    assert refused < 150
