"""Office Open XML: docx, pptx and xlsx.

The content types of an archive say which members have text: they are the same for all producers, unlike the names of
the members.
"""

from __future__ import annotations

from collections.abc import Collection

from dragoman.documents.archive import Archive
from dragoman.documents.runs import PREFIXES, Paragraph, paragraphs
from dragoman.documents.segments import DocumentTranslator, is_identifier, plain_text
from dragoman.errors import DataError

_CONTENT_TYPES = "[Content_Types].xml"
_APPLICATIONS = {"docx": "word", "pptx": "presentation|powerpoint", "xlsx": "spreadsheet|excel"}
"""Words of the content type of the main member."""
_DRAWN = {"chart+xml", "diagramData+xml", "diagramDrawing+xml"}
"""Titles of charts, and SmartArt with its picture."""
_WORD = {"main+xml", "header+xml", "footer+xml", "footnotes+xml", "endnotes+xml", *_DRAWN}
_SLIDES = {"slide+xml", "notesSlide+xml", *_DRAWN}
_SHEETS = {"sharedStrings+xml", "worksheet+xml", "drawing+xml", *_DRAWN}
_FIELD_NAMES = {"x:tableColumn", "x:cacheField"}


def translate_docx(data: bytes, translator: DocumentTranslator) -> bytes:
    """Translate body, headers, footers, footnotes, endnotes, text boxes, charts and SmartArt.  Raises DataError."""
    return _translate(data, translator, "docx", _WORD)


def translate_pptx(data: bytes, translator: DocumentTranslator) -> bytes:
    """Translate slides, their notes, tables, charts and SmartArt; not masters and layouts.  Raises DataError."""
    return _translate(data, translator, "pptx", _SLIDES)


def translate_xlsx(data: bytes, translator: DocumentTranslator) -> bytes:
    """Translate cells with text, text boxes and charts; not formulas, numbers and names of fields.  Raises DataError.

    The columns of tables and the fields of pivot tables are addressed by the text of their header cells, so cells with
    such a text are kept, and so are identifiers.
    """
    return _translate(data, translator, "xlsx", _SHEETS)


def _translate(data: bytes, translator: DocumentTranslator, format: str, kinds: Collection[str]) -> bytes:
    archive = Archive(data)
    types = _content_types(archive, format)
    parts = []
    for name, kind in types.items():
        if (
            kind in kinds
            and name in archive
            and not (kind == "worksheet+xml" and b"inlineStr" not in archive.read(name))
        ):
            root, edits = archive.edit(name, PREFIXES)
            parts += [Paragraph(node, edits) for node in paragraphs(root)]
    if format == "xlsx":
        names = _field_names(archive, types)
        parts = [one for one in parts if not _is_kept(plain_text(one.segment), names)]
    translator.translate_blocks(parts)
    return archive.edited()


def _is_kept(text: str, names: Collection[str]) -> bool:
    return text in names or is_identifier(text)


def _content_types(archive: Archive, format: str) -> dict[str, str]:
    """Return the last component of the content type of each member, such as "footnotes+xml"."""
    root, _ = archive.edit(_CONTENT_TYPES, {})
    types = {
        node.attributes.get("PartName", "").lstrip("/"): node.attributes.get("ContentType", "")
        for node in root.nodes
        if node.name == "Override"
    }
    main = next((kind for kind in types.values() if kind.endswith(".main+xml")), "")
    for other, words in _APPLICATIONS.items():
        if any(word in main for word in words.split("|")):
            if other != format:
                raise DataError(f"the content is that of a .{other} file, not of a .{format} file; rename it")
            return {name: kind.rpartition(".")[2] for name, kind in types.items()}
    raise DataError(f"not a .{format} file: its content types name no main document. Save the document again.")


def _field_names(archive: Archive, types: dict[str, str]) -> frozenset[str]:
    return frozenset(
        node.attributes.get("name", "")
        for name, kind in types.items()
        if kind in ("table+xml", "pivotCacheDefinition+xml") and name in archive
        for node in archive.edit(name, PREFIXES)[0].iter()
        if node.name in _FIELD_NAMES
    )
