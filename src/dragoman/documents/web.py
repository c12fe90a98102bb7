"""HTML files, and EPUB books, which are archives of XHTML files."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from dragoman.data.languages import language_code
from dragoman.documents.archive import Archive
from dragoman.documents.plain import decode_text
from dragoman.documents.segments import DocumentTranslator
from dragoman.documents.xml_spans import Inline, Role
from dragoman.errors import DataError
from dragoman.markup.html import in_language

_CHARSET = re.compile(
    rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w.:-]+)|<\?xml[^<>]*?encoding=[\"']([\w.:-]+)", re.IGNORECASE
)
_HEAD = 4096
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
"""Methods that obfuscate fonts; others encrypt the text."""


def translate_html_file(data: bytes, translator: DocumentTranslator, attributes: bool = False) -> bytes:
    """Translate an HTML file; see `translate_html`.  Raises DataError if its encoding is unknown or invalid."""
    text, encode = decode_text(data, _CHARSET.search(data[:_HEAD]))
    [translated] = _translate_pages(translator, [text], attributes)
    return encode(translated)


def _translate_pages(translator: DocumentTranslator, pages: Sequence[str], attributes: bool) -> list[str]:
    """Translate pages; the attribute lang of those that change is set to the target language."""
    translated = translator.track((translator.page(page, attributes) for page in pages), len(pages))
    language = translator.target_language
    pairs = zip(pages, translated, strict=True)
    return [in_language(new, language) if language and new != page else new for page, new in pairs]


def translate_epub(data: bytes, translator: DocumentTranslator, attributes: bool = False) -> bytes:
    """Translate the chapters and the table of contents of a book.  Raises DataError if it is damaged or encrypted."""
    archive = Archive(data)
    if "mimetype" not in archive or archive.read("mimetype").strip() != b"application/epub+zip":
        raise DataError("its type (member mimetype) is not application/epub+zip; accepted: an EPUB book")
    if _ENCRYPTION in archive:
        root, _ = archive.edit(_ENCRYPTION, {})
        methods = {node.attributes.get("Algorithm", "") for node in root.iter() if node.name == "EncryptionMethod"}
        if methods - {*_FONTS}:
            raise DataError("is encrypted (DRM); accepted: books without copy protection")
    types: dict[str, str] = {}  # of the members, in the order of the package document
    packages = []
    root, _ = archive.edit(_CONTAINER, {})
    for file in (node for node in root.iter() if node.name == "rootfile"):
        path = file.attributes.get("full-path", "")
        packages.append(archive.edit(path, {}))
        for node in (node for node in packages[-1][0].iter() if node.name == "item"):
            name = posixpath.join(posixpath.dirname(path), unquote(node.attributes.get("href", "")))
            types[posixpath.normpath(name)] = node.attributes.get("media-type", "")
    types = {name: kind for name, kind in types.items() if name in archive}
    pages = [name for name, kind in types.items() if kind == "application/xhtml+xml"]
    decoded: list[tuple[str, Any]] = [decode_text(archive.read(name)) for name in pages]
    translated = _translate_pages(translator, [text for text, _ in decoded], attributes)
    language = translator.target_language
    if language and any(new != text for new, (text, _) in zip(translated, decoded, strict=True)):
        for root, edits in packages:
            for node in (node for node in root.iter() if node.name == "language" and node.inner_end > node.inner_start):
                if language_code(node.text.strip()) != language_code(language):
                    edits.replace((node.inner_start, node.inner_end), language.encode())
    labels = []
    for name, kind in types.items():
        if kind == "application/x-dtbncx+xml":
            root, edits = archive.edit(name, {})
            texts = (node for node in root.iter() if node.name == "text")
            labels += [Inline(node, edits, lambda node: Role(), collapse=True) for node in texts]
    translator.translate_blocks(labels)
    written = {name: encode(text) for name, (_, encode), text in zip(pages, decoded, translated, strict=True)}
    return archive.edited(written)
