"""Documents in, translated documents out: text is translated, everything else stays as it is."""

from dragoman.documents.formats import FORMATS, SUFFIXES, Format
from dragoman.documents.translation import (
    DocumentReport,
    document_format,
    document_text,
    translate_bytes,
    translate_document,
)

__all__ = [
    "FORMATS", "SUFFIXES", "DocumentReport", "Format", "document_format", "document_text", "translate_bytes",
    "translate_document",
]  # fmt: skip
