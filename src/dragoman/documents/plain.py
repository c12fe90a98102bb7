"""Plain text: every line is translated, and blank lines and line ends are kept."""

from __future__ import annotations

import re

from dragoman.documents.encoding import decode_text
from dragoman.documents.marks import find_marks
from dragoman.documents.segments import DocumentTranslator, source_text

_LINE_END = re.compile(r"(?P<break>\r\n|\n|\r)")


def translate_txt(data: bytes, translator: DocumentTranslator) -> bytes:
    """Translate a text file line by line.  Raises DataError."""
    text, encode = decode_text(data)
    [translated] = translator.segments([find_marks(text, _LINE_END)])
    return encode(source_text(translated))
