"""OpenDocument text: paragraphs and headings of the body, of headers and footers, notes, tables and text boxes."""

from __future__ import annotations

from dragoman.documents.archive import Archive
from dragoman.documents.inline import Inline, Role
from dragoman.documents.segments import DocumentTranslator
from dragoman.documents.xml_spans import Node
from dragoman.errors import DataError

_OASIS = "urn:oasis:names:tc:opendocument:xmlns"
_PREFIXES = {
    f"{_OASIS}:text:1.0": "text",
    f"{_OASIS}:office:1.0": "office",
    f"{_OASIS}:table:1.0": "table",
    f"{_OASIS}:manifest:1.0": "manifest",
}
_MIME = b"application/vnd.oasis.opendocument.text"
_PARTS = ("content.xml", "styles.xml")
_PARAGRAPHS = {"text:p", "text:h"}
_PAIRS = {"text:span", "text:a", "text:meta"}
_BREAKS = {"text:line-break", "text:tab"}
_KEPT = {"office:annotation", "text:tracked-changes", "office:scripts", "office:forms"}
"""Elements whose paragraphs are not part of the text: comments and deleted text."""


def translate_odt(data: bytes, translator: DocumentTranslator) -> bytes:
    """Translate a text document.  Comments, fields and tracked deletions are kept.  Raises DataError."""
    archive = Archive(data)
    _check(archive)
    paragraphs = []
    for name in _PARTS:
        if name in archive:
            root, edits = archive.edit(name, _PREFIXES)
            nodes = (node for node in root.iter(_is_kept) if node.name in _PARAGRAPHS)
            paragraphs += [Inline(node, edits, _role, collapse=True) for node in nodes]
    translator.translate_blocks(paragraphs)
    return archive.edited()


def _check(archive: Archive) -> None:
    if "mimetype" not in archive or not archive.read("mimetype").strip().startswith(_MIME):
        mimetype = archive.read("mimetype").decode("ascii", "replace")[:80] if "mimetype" in archive else "none"
        raise DataError(
            f"its type (member mimetype) is {mimetype!r}; accepted: {_MIME.decode()}, a text document (.odt)"
        )
    if "META-INF/manifest.xml" in archive:
        root, _ = archive.edit("META-INF/manifest.xml", _PREFIXES)
        if any(node.name == "manifest:encryption-data" for node in root.iter()):
            raise DataError("is encrypted; save the document without a password")


def _is_kept(node: Node) -> bool:
    """Return whether an element has no text to translate: a comment, or a table cell with a number or a formula."""
    if node.name == "table:table-cell":
        kind = node.attributes.get("office:value-type", "string")
        return kind != "string" or "table:formula" in node.attributes
    return node.name in _KEPT


def _role(node: Node) -> Role:
    if node.name in _PAIRS:
        return Role("pair")
    return Role("break" if node.name in _BREAKS else "empty")
