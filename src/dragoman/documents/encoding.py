"""Text files as text, and back to the bytes of the same encoding."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from dragoman.errors import DataError

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def decode_text(data: bytes, encoding: str | None = None) -> tuple[str, Callable[[str], bytes]]:
    """Return the text of a file without its byte order mark, and a function that encodes a text in the same way.

    encoding: default: that of the byte order mark, or UTF-8.  Raises DataError for invalid bytes; the function, for
    characters that the encoding lacks.
    """
    bom = b""
    for mark, name in _BOMS:
        if data.startswith(mark):
            bom, encoding = mark, name
            break
    name = encoding or "utf-8"
    try:
        text = data[len(bom) :].decode(name)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"line {line:,}: byte 0x{data[len(bom) + error.start]:02x} is not valid {name.upper()}; accepted: UTF-8, "
            "or UTF-16 with a byte order mark. Convert the file, for example with: iconv -f WINDOWS-1252 -t UTF-8"
        ) from None
    return text, lambda text: bom + _encoded(text, name)


def _encoded(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError as error:
        raise DataError(
            f"the translation has the character {text[error.start]!r}, which {encoding.upper()} lacks; convert the "
            "file to UTF-8 first"
        ) from None
