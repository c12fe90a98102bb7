"""Spans that must survive, in every format and on every path: format x kind of span x translator, from tables."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable

import pytest

from dragoman.data.spans import SPAN_KINDS, keeps_spans
from sample_documents import BOOK, FORMATS, OFFICE, PREFIXES, TYPE, PieceTranslator, members, translated, zip_of

EXAMPLES = [example for kind in SPAN_KINDS.values() for example in kind.examples]
Pieces = Callable[[list[str]], list[str]]
WEAK: dict[str, Pieces] = {
    "loses what is not a word": lambda pieces: [
        piece.upper() for piece in pieces if piece.isspace() or piece.isalpha()
    ],
    "writes everything twice": lambda pieces: [one for piece in pieces for one in (piece, piece, " ")],
    "writes nothing": lambda pieces: [],
    "reverses": lambda pieces: pieces[::-1],
    "copies": lambda pieces: pieces,
    "grows together": lambda pieces: [piece for piece in pieces if not piece.isspace()],
}


def document(format: str, text: str) -> bytes:
    """A document whose only text is this one."""
    coded = html.escape(text, quote=False)
    if format in OFFICE:
        prefix, kind, main = OFFICE[format][:3]
        paragraph = "x:si" if prefix == "x" else f"{prefix}:p"
        spaces = " ".join(f'xmlns:{own}="{uri}"' for uri, own in list(PREFIXES.items())[::2])
        types = (("own.xml", f"{kind}+xml"), ("main.xml", f"{main}.main+xml"))
        overrides = "".join(f'<Override PartName="/{part}" ContentType="{TYPE}{name}"/>' for part, name in types)
        run = f"<{prefix}:r><{prefix}:t>{coded}</{prefix}:t></{prefix}:r>"
        content = f"<a {spaces}><{paragraph}>{run}</{paragraph}></a>"
        return zip_of({"[Content_Types].xml": f"<Types>{overrides}</Types>", "main.xml": "<a/>", "own.xml": content})
    namespace = 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
    page = '<html xmlns="http://www.w3.org/1999/xhtml"><body><p>' + coded + "</p></body></html>"
    if format == "odt":
        content = f"<a {namespace}><text:p>{coded}</text:p></a>"
        return zip_of({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content})
    if format == "epub":
        return zip_of({**BOOK, "a/d.ncx": "<ncx/>", "c.xhtml": page})
    plain = {
        "txt": text, "md": text, "html": f"<p>{coded}</p>", "srt": f"1\n00:00:01,000 --> 00:00:02,500\n{text}\n",
        "vtt": f"WEBVTT\n\n00:01.000 --> 00:02.500\n{coded}\n", "csv": f'"{text.replace(chr(34), chr(34) * 2)}"\n',
        "po": f'msgid ""\nmsgstr ""\n"Language: de\\n"\n\nmsgid {json.dumps(text, ensure_ascii=False)}\nmsgstr ""\n',
        "xliff": '<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2"><trans-unit><source>' + coded
        + "</source></trans-unit></xliff>",
        "tmx": f'<tmx><tu><tuv xml:lang="en"><seg>{coded}</seg></tuv></tu></tmx>',
        "tsv": f"{text}\tA12\n", "json": json.dumps({"a": text}),
    }  # fmt: skip
    return plain[format].encode()


def text_of(format: str, data: bytes) -> str:
    """The only text of a translated document."""
    written = "".join(part.decode() for part in members(data).values()) if data.startswith(b"PK") else data.decode()
    if format == "json":
        return str(json.loads(written)["a"])
    if format == "po":
        return str(json.loads(re.findall(r'msgstr ("[^\n]*")', written)[-1]))
    if format == "csv":
        return written.strip()[1:-1].replace('""', '"')
    pattern = {
        "srt": r"\d\n(.*)\n", "vtt": r"\d\n(.*)\n", "xliff": "<target[^>]*>(.*)</target>", "html": "<p>(.*)</p>",
        "tmx": '"de"><seg>(.*)</seg>', "tsv": "(.*)\tA12", "odt": "<text:p>(.*)</text:p>", "epub": "<p>(.*)</p>",
        "docx": "<w:t[^>]*>(.*)</w:t>", "pptx": "<a:t[^>]*>(.*)</a:t>", "xlsx": "<x:t[^>]*>(.*)</x:t>",
    }.get(format, "(.*)")  # fmt: skip
    found = re.search(pattern, written, re.DOTALL)
    assert found is not None, written
    return found[1] if format in ("txt", "md", "srt", "tsv") else html.unescape(found[1])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("weakness", WEAK)
def test_every_span_survives_in_every_format(format: str, weakness: str) -> None:
    lost = []
    decoded = ("\\(", "&") if format == "md" else ()  # Markdown has its own meaning for these
    for example in EXAMPLES:
        if example.startswith(decoded):
            continue
        text = f"One red {example} dog sees two {example}."
        out = text_of(format, translated(format, document(format, text), PieceTranslator(WEAK[weakness])))
        if not keeps_spans(text, out):
            lost.append((text, out))
    assert lost == []
