"""Documents in, translated documents out: text is translated, everything else stays as it is."""

from __future__ import annotations

from dragoman.documents.translation import (
    SUFFIXES,
    DocumentReport,
    document_format,
    document_text,
    translate_bytes,
    translate_document,
)

__all__ = ["SUFFIXES", "DocumentReport", "document_format", "document_text", "translate_bytes", "translate_document"]
