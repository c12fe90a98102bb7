"""Translation of documents: which function translates a format, files in, files out, and the text of a document."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dragoman.documents.archive import decompressed_size
from dragoman.documents.exchange import translate_po, translate_tmx, translate_xliff
from dragoman.documents.markdown import translate_markdown
from dragoman.documents.office import translate_odt, translate_office
from dragoman.documents.plain import translate_csv, translate_json, translate_tsv, translate_txt
from dragoman.documents.segments import DocumentTranslator, Track
from dragoman.documents.subtitles import translate_srt, translate_vtt
from dragoman.documents.web import translate_epub, translate_html_file
from dragoman.errors import DataError, DragomanError, UsageError
from dragoman.io.reading import as_path, read_bytes
from dragoman.io.writing import atomic_file, not_written
from dragoman.markup.html import translate_html
from dragoman.pipelines.segment import Segment
from dragoman.registry import find, registered

if TYPE_CHECKING:
    from dragoman.pipelines.translation import Translator

_FORMATS: dict[str, Callable[..., bytes]] = {
    "txt": translate_txt,
    "md": translate_markdown,
    "html": translate_html_file,
    "srt": translate_srt,
    "vtt": translate_vtt,
    "po": translate_po,
    "xliff": translate_xliff,
    "tmx": translate_tmx,
    "csv": translate_csv,
    "tsv": translate_tsv,
    "json": translate_json,
    **{format: partial(translate_office, format=format) for format in ("docx", "pptx", "xlsx")},
    "odt": translate_odt,
    "epub": translate_epub,
}
"""Functions translate(data: bytes, work: DocumentTranslator, **options) -> bytes, which raise DataError for a damaged
document; subtitles.py is a short example.  docs/documents.md lists the formats."""
_OTHER_SUFFIXES = {
    ".text": "txt", ".markdown": "md", ".mdx": "md", ".qmd": "md", ".rmd": "md",
    ".htm": "html", ".xhtml": "html", ".pot": "po", ".xlf": "xliff",
    ".docm": "docx", ".dotx": "docx", ".pptm": "pptx", ".ppsx": "pptx", ".potx": "pptx", ".xlsm": "xlsx",
    ".xltx": "xlsx", ".ott": "odt",
}  # fmt: skip
SUFFIXES = {**{f".{name}": name for name in _FORMATS}, **_OTHER_SUFFIXES}
"""Suffixes of file names -> formats."""
_ARCHIVES = {"docx", "pptx", "xlsx", "odt", "epub"}
_MAX_FILE = 256 << 20


@dataclass(frozen=True)
class DocumentReport:
    """format: of the document.  segments, characters: of the texts that were translated."""

    format: str
    segments: int
    characters: int


def document_format(name: str | Path, format: str | None = None) -> str:
    """Return the format of a file by its name, or `format` if it is given.  Raises UsageError for unknown formats."""
    if format is not None:
        if format in _FORMATS or find("document_format", format) is not None:
            return format
        raise UsageError(f"format = {format!r:.40}; accepted: {', '.join(_FORMATS)}")
    suffix = Path(name).suffix.casefold()
    if found := suffix_format(suffix):
        return found
    found = f"the suffix {suffix!r} is not that of a document" if suffix else "the name has no suffix"
    raise UsageError(f"{name}: {found}; accepted: {', '.join(SUFFIXES)}. Rename the file, or give its format")


def translate_bytes(
    translator: Translator,
    data: bytes,
    format: str,
    *,
    columns: Sequence[str | int] | None = None,
    attributes: bool = False,
    track: Track | None = None,
    **settings: Any,
) -> tuple[bytes, DocumentReport]:
    """Translate a document in memory; the arguments are those of `translate_document`.

    Returns the translated document and a report.  Raises UsageError, and DataError if the document is damaged,
    encrypted or unsafe.
    """
    translate = _translation_of(document_format("", format))
    work = DocumentTranslator(translator, settings)
    if track is not None:
        work.track = track
    options: dict[str, Any] = {}
    for name, value, formats in (
        ("columns", columns, "csv and tsv"),
        ("attributes", attributes or None, "html and epub"),
    ):
        if value is not None and name not in inspect.signature(translate).parameters:
            raise UsageError(f"{name}: only for {formats}; the format is {format}. Omit the option")
        options |= {} if value is None else {name: value}
    return translate(data, work, **options), DocumentReport(format, work.count, work.characters)


def suffix_format(suffix: str) -> str | None:
    """Return the built-in or registered format of a suffix in lower case, None for an unknown one."""
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    parts = registered("document_format").values()
    return next((part.name for part in parts if suffix in part.details.get("suffixes", ())), None)


def _translation_of(format: str) -> Callable[..., bytes]:
    part = None if format in _FORMATS else find("document_format", format)
    return _FORMATS[format] if part is None else part.make


def translate_document(
    translator: Translator,
    source: Path | bytes,
    target: Path,
    *,
    format: str | None = None,
    columns: Sequence[str | int] | None = None,
    attributes: bool = False,
    track: Track | None = None,
    **settings: Any,
) -> DocumentReport:
    """Translate the text of a document and write the result; everything else stays as it is (see docs/documents.md).

    Args:
        source: File, or its content, which needs a `format`.
        target: File to write, completely or not at all.
        format: "docx", "srt", ...; default: by the suffix of `source`.
        columns: Of csv and tsv: names in the first row, or numbers from 1.  Default: all cells with words.
        attributes: Of html and epub: whether to translate the attributes alt, title and placeholder.
        track: Receives an iterator of segments and their number, and returns it, to show progress.
        settings: Arguments of `Translator.translate`.

    Raises UsageError, and DataError if the document is damaged, encrypted or unsafe.
    """
    name = "document"
    if not isinstance(source, bytes):
        source = as_path(source, "source")
        name, format = str(source), document_format(source, format)
        data = read_bytes(source, DataError, "Give a document that can be read.", _MAX_FILE)
    elif format is None:
        raise UsageError(f"format = None: the source is bytes; accepted: {', '.join(_FORMATS)}")
    else:
        data = source
    target = as_path(target, "target")
    if isinstance(source, Path) and target.exists() and source.exists() and target.samefile(source):
        raise UsageError(f"{target}: is both source and target; choose another output file")
    if target.is_dir():
        raise UsageError(f"{target}: is a folder; give the name of a file")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: the folder {target.parent} does not exist; create it first")
    try:
        translated, report = translate_bytes(
            translator, data, format, columns=columns, attributes=attributes, track=track, **settings
        )
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    try:
        with atomic_file(target) as file:
            file.write(translated)
    except OSError as error:
        raise DragomanError(not_written(target, error)) from None
    return report


def estimated_characters(data: bytes, format: str) -> int:
    """Return about the number of characters of the text of a document, which is not read: an eighth of its XML."""
    return decompressed_size(data) // 8 if format in _ARCHIVES else len(data)


def document_text(data: bytes, format: str, characters: int = 4000) -> str:
    """Return the text of a document that would be translated, one segment per line, to identify its language.

    characters: enough of them; the rest is not read.  Raises UsageError for TMX, whose texts are in several languages,
    and DataError if the document is damaged, encrypted or unsafe.
    """
    if format == "tmx":
        raise UsageError("a TMX file has texts in several languages; specify its source language")
    reader = _TextReader(characters)
    with suppress(_EnoughError):
        _translation_of(document_format("", format))(data, reader)
    return "\n".join(reader.texts)


class _EnoughError(Exception):
    """Enough text has been read."""


class _PageRead(Exception):
    """The texts of a page have been read; they are not translated."""


class _TextReader(DocumentTranslator):
    """Collects the segments of a document, and leaves them as they are.

    It takes the place of a translator, too, to receive the texts of pages.
    """

    def __init__(self, characters: int) -> None:
        super().__init__(cast(Any, self))
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
        texts = [
            "".join(item if isinstance(item, str) else item.raw if item.raw.isspace() else "" for item in segment)
            for segment in segments  # the line ends are tags; other tags are left out
        ]
        self._add(texts)
        return list(segments)

    def page(self, text: str, attributes: bool = False) -> str:
        with suppress(_PageRead):
            translate_html(self.translator, [text], attributes=attributes)
        return text

    def translate(self, texts: Sequence[str], **settings: Any) -> Any:
        self._add(texts)
        raise _PageRead
