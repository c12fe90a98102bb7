"""Documents of every format that tests write, and translators that tests use for documents."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dragoman.decoding.backend import DecodingBackend
from dragoman.decoding.search_types import Hypothesis
from dragoman.documents.office import PREFIXES
from dragoman.pipelines.lines import Translation
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import EOS

TOKEN = re.compile(r"%(?:\(\w+\)|\d\$)?[ds]|\{\w+\}|\s+|\w+|[^\w\s]")
"""Placeholders, spaces, words and other characters."""


class Pieces:
    """A tokenizer whose tokens are the pieces of a text, spaces included."""

    def __init__(self) -> None:
        self.pieces = ["<pad>", "<unk>", "<s>", "</s>"]

    def number(self, piece: str) -> int:
        if piece not in self.pieces:
            self.pieces.append(piece)
        return self.pieces.index(piece)

    def encode_source(self, text: str) -> list[int]:
        return [*map(self.number, TOKEN.findall(text)), EOS]

    def decode_target(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces[i] for i in ids if i > EOS)

    def source_spans(self, text: str) -> list[tuple[int, int]]:
        return [found.span() for found in TOKEN.finditer(text)]

    def target_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        ends = np.cumsum([len(self.pieces[i]) for i in ids if i > EOS]).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True)) if ends else []

    def source_piece(self, token: int) -> str:
        return self.pieces[token]

    def target_ids(self, pieces: Sequence[str]) -> list[int]:
        return [self.pieces.index(piece) for piece in pieces]

    encode_target, target_piece = encode_source, source_piece


class PieceBackend(DecodingBackend):
    """Applies a function to the pieces of a text; each piece of the result is aligned with the one at its index."""

    device, description = "cpu", "pieces"

    def __init__(self, tokenizer: Pieces, function: Callable[[list[str]], list[str]]) -> None:
        self.tokenizer, self.function = tokenizer, function

    def search(self, sources: Any, prefixes: Any, settings: Any, batch_tokens: int) -> list[list[Hypothesis]]:
        found = []
        for source in sources:
            pieces = self.function([self.tokenizer.pieces[i] for i in source[:-1]])
            ids = [self.tokenizer.number(piece) for piece in pieces]
            found.append([Hypothesis(ids, -1.0, -1.0, [-0.1] * (len(ids) + 1), False)])
        return found

    def align(self, pairs: Any, batch_tokens: int) -> Any:
        found = []
        for source, target in pairs:
            weights = np.full((len(target), len(source)), 0.01, np.float32)
            for row in range(len(target)):
                weights[row, min(row, len(source) - 1)] = 1
            found.append(weights / weights.sum(1, keepdims=True))
        return found

    def score(self, pairs: Any, batch_tokens: int) -> Any:
        raise NotImplementedError

    stepper = to_torch = score  # type: ignore[assignment]


class PieceTranslator(Translator):
    """calls: the texts of each call of `translate`.  settings: those of the last call."""

    def __init__(self, function: Callable[[list[str]], list[str]]) -> None:
        tokenizer = Pieces()
        super().__init__(PieceBackend(tokenizer, function), tokenizer, max_source=10_000)  # type: ignore[arg-type]
        self.describe_data(None, ("en", "de"))
        self.calls: list[list[str]] = []
        self.given: dict[str, Any] = {}

    def translate(self, texts: Iterable[str], **settings: Any) -> list[Translation]:  # type: ignore[override]
        texts = list(texts)
        self.calls.append(texts)
        self.given = settings
        return super().translate(texts, **settings)

    @property
    def texts(self) -> list[str]:
        return [text for call in self.calls for text in call]


def upper() -> PieceTranslator:
    """Upper case; placeholders are kept."""
    return PieceTranslator(lambda pieces: [piece.upper() if piece[0] not in "%{" else piece for piece in pieces])


def says(text: str) -> PieceTranslator:
    """Translates everything to the same text."""
    return PieceTranslator(lambda pieces: TOKEN.findall(text))


NASTY = ["«", " ", "&", " ", "<", "more", ">", " ", '"', "5", " ", "*", " ", "3", '"', ";", "[", "x", "]", "\\", "'"]


def longer() -> PieceTranslator:
    """Upper case, in reversed order, with characters that formats have to escape."""
    return PieceTranslator(lambda pieces: [*(piece.upper() for piece in reversed(pieces)), " ", *NASTY])


def translated(format: str, data: bytes | str, translator: Translator | None = None, **options: Any) -> bytes:
    """The content of a document after its translation, to upper case by default."""
    from dragoman.documents import translate_bytes

    data = data.encode() if isinstance(data, str) else data
    return translate_bytes(translator or upper(), data, format, **options)[0]


Sample = Callable[[Callable[[bytes], bytes]], bytes]
"""Returns a document with the change that a function makes to it, or to the member with the text of an archive."""

MARKDOWN = """---
title: x
---

# A *heading* ##

Some **bold [link](https://example.org/a_(b) "title")** \\*text\\* &amp;
`code` <b>html</b> ![image](a.png) <https://example.org> [ref], [^1]

> - quoted\\
>   lines

| a \\| b | *c* |
|---|---|
| `d` | e |

[ref]: https://example.org
"""
SRT = (
    "1\n00:00:01,000 --> 00:00:02,500\nA long <i>sentence</i> in\ntwo lines.\n\n"
    "2\n00:00:03,000 --> 00:00:04,000\n- Who?\n- Me.\n"
)
VTT = "WEBVTT\n\nNOTE a\n\nfirst\n00:01.000 --> 00:02.000\n<v Anna>Fish &amp; chips</v> <00:01.500><c>now\n"
PO = (
    'msgid ""\nmsgstr ""\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
    '#, c-format\nmsgid "Hello %s,\\n"\n"bye"\nmsgstr ""\n\n'
    'msgid "one"\nmsgid_plural "%d many"\nmsgstr[0] ""\nmsgstr[1] ""\n'
)
XLIFF = (
    '<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" target-language="de"><body>'
    '<trans-unit><source>See <g id="1">the <x id="2"/> one</g> &amp; <bpt id="3">b</bpt>go<ept id="3">b</ept></source>'
    "</trans-unit></body></file></xliff>"
)
TMX = (
    '<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx><body><tu><tuv xml:lang="en"><seg>A <hi>go</hi> <ph>%s</ph> one</seg></tuv>'
    "</tu></body></tmx>"
)
WORD = (
    "<w:p><w:pPr/><w:r><w:rPr><w:b/></w:rPr><w:t>Some </w:t></w:r>"
    "<w:hyperlink><w:r><w:t>link</w:t><w:tab/></w:r></w:hyperlink>"
    '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>HYPERLINK "a"</w:instrText></w:r>'
    '<w:r><w:fldChar w:fldCharType="separate"/></w:r><w:r><w:t>text</w:t></w:r>'
    '<w:r><w:fldChar w:fldCharType="end"/></w:r><w:sdt><w:sdtPr/><w:sdtContent><w:r><w:t>end</w:t>'
    "<w:pict><w:p><w:r><w:t>in a box</w:t></w:r></w:p></w:pict></w:r></w:sdtContent></w:sdt></w:p>"
)
SHEET = (
    "<x:si><x:t>one &lt; two</x:t></x:si>"
    "<x:si><x:r><x:rPr><x:b/></x:rPr><x:t>bold</x:t></x:r><x:r><x:t> not</x:t></x:r></x:si>"
)
TEXT = (
    '<text:p>Some <text:span text:style-name="B">bold<text:s text:c="3"/></text:span> text'
    "<text:note><text:p>A note</text:p></text:note>.<text:tab/>Next</text:p>"
)
TYPE = "application/vnd.openxmlformats-officedocument."


def _plain(text: str, change: Callable[[bytes], bytes]) -> bytes:
    return change(text.encode())


def _archive(members: Mapping[str, str], changed: str, change: Callable[[bytes], bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, change(text.encode()) if name == changed else text)
    return file.getvalue()


def _office(content: str, name: str, kind: str, main: str) -> list[Sample]:
    spaces = " ".join(f'xmlns:{prefix}="{uri}"' for uri, prefix in list(PREFIXES.items())[::2])
    types = {name: f"{TYPE}{kind}+xml", "main.xml": f"{TYPE}{main}.main+xml"}
    overrides = "".join(f'<Override PartName="/{part}" ContentType="{kind}"/>' for part, kind in types.items())
    members = {
        "[Content_Types].xml": f"<Types>{overrides}</Types>",
        "main.xml": "<a/>",
        name: f"<a {spaces}>{content}</a>",
    }
    return [partial(_archive, members, changed) for changed in (name, "[Content_Types].xml")]


_ODT = {
    "mimetype": "application/vnd.oasis.opendocument.text",
    "content.xml": f'<a xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0">{TEXT}</a>',
}
SAMPLES: dict[str, list[Sample]] = {
    "txt": [partial(_plain, "one two.\nthree\r\n\n four")],
    "md": [partial(_plain, MARKDOWN)],
    "srt": [partial(_plain, SRT)],
    "vtt": [partial(_plain, VTT)],
    "po": [partial(_plain, PO)],
    "xliff": [partial(_plain, XLIFF)],
    "tmx": [partial(_plain, TMX)],
    "csv": [partial(_plain, 'name;"text";n\r\nx_1;"a ""quoted"" word";1,5\r\n;plain words;"two\nlines"\r\n')],
    "tsv": [partial(_plain, 'a b\tc\n"d d"\te\n')],
    "json": [partial(_plain, '{"a b": ["two words\\n", 1.50, {"c": "caf\\u00e9 {name} <b>x</b>"}]}')],
    "docx": _office(WORD, "word/notes.xml", "wordprocessingml.footnotes", "wordprocessingml.document"),
    "xlsx": _office(SHEET, "xl/strings.xml", "spreadsheetml.sharedStrings", "spreadsheetml.sheet"),
    "odt": [partial(_archive, _ODT, name) for name in _ODT],
}
