"""The text of a document, without translating it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from dragoman.documents.segments import DocumentTranslator
from dragoman.documents.translation import read_segments
from dragoman.errors import UsageError
from dragoman.markup.html import translate_html
from dragoman.markup.segment import Segment


def document_text(data: bytes, format: str, characters: int = 4000) -> str:
    """Return the text of a document that would be translated, one segment per line, to identify its language.

    characters: enough of them; the rest is not read.  Raises UsageError for TMX, whose texts are in several languages,
    and DataError if the document is damaged, encrypted or unsafe.
    """
    if format == "tmx":
        raise UsageError("a TMX file has texts in several languages; specify its source language")
    reader = _TextReader(characters)
    with suppress(_EnoughError):
        read_segments(data, format, reader)
    return "\n".join(reader.texts)


class _EnoughError(Exception):
    """Enough text has been read."""


class _PageTexts(Exception):
    """The texts of a page, which are not translated."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self.texts = texts


class _PageReader:
    """Takes the place of a translator, to receive the texts of a page."""

    def translate(self, texts: Sequence[str], **settings: Any) -> Any:
        raise _PageTexts(texts)


class _TextReader(DocumentTranslator):
    """Collects the segments of a document, and leaves them as they are."""

    def __init__(self, characters: int) -> None:
        super().__init__(cast(Any, _PageReader()))
        self.texts: list[str] = []
        self._missing = characters

    @property
    def languages(self) -> tuple[str | None, str | None]:
        return None, None

    def _add(self, texts: Sequence[str]) -> None:
        for text in texts:
            self.texts.append(text)
            self._missing -= len(text)
            if self._missing <= 0:
                raise _EnoughError

    def segments(self, segments: Sequence[Segment]) -> list[Segment]:
        self._add([_with_line_ends(segment) for segment in segments])
        return list(segments)

    def page(self, text: str, attributes: bool = False) -> str:
        try:
            translate_html(self.translator, [text], attributes=attributes)
        except _PageTexts as found:
            self._add(found.texts)
        return text


def _with_line_ends(segment: Segment) -> str:
    """Return the text of a segment with the line ends, which are tags, and without other tags."""
    return "".join(item if isinstance(item, str) else item.raw if item.raw.isspace() else "" for item in segment)
