"""Decoding of XML files: encoding, invalid bytes, and characters that XML does not allow."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from dragoman.errors import DataError, clip
from dragoman.io.lines import read_chunks

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
         (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
         (b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"))  # fmt: skip
_DECLARATION = re.compile(rb"\s*<\?xml[^>]*?\sencoding\s*=\s*[\"']([^\"']*)")
_ENOUGH = 8
"""Bytes outside of ASCII that show, if they are valid UTF-8, that a file is UTF-8."""
_MOST_SHOWN = 5

_INVALID_BYTE = re.compile("[\udc80-\udcff]")  # as decoded with "surrogateescape"
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|&#(?:x[0-9a-fA-F]{1,8}|[0-9]{1,9});")
_LONGEST_REFERENCE = 12
_LINE_BREAKS = "\x0b\x0c"  # vertical tab and form feed separate words


def read_xml(path: Path, dropped: Callable[[int], None]) -> Iterator[str]:
    """Yield the text of an XML file in chunks, without characters that XML does not allow.

    dropped: receives numbers of such characters.  Raises DataError if the file cannot be read, if its encoding is
    unknown, and at the end, if it contains invalid bytes, with all of their lines.
    """
    chunks = read_chunks(path)
    head = next(chunks, b"")
    encoding = _encoding(path, head)
    kept = ""
    for text in _decoded(path, encoding, chain([head], chunks)):
        text = kept + text
        start = text.rfind("&", max(0, len(text) - _LONGEST_REFERENCE))
        end = len(text) if start < 0 or ";" in text[start:] else start  # a reference may continue in the next chunk
        yield _allowed(text[:end], dropped)
        kept = text[end:]
    yield _allowed(kept, dropped)


def _allowed(text: str, dropped: Callable[[int], None]) -> str:
    count = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal count
        reference = match[0]
        if reference.startswith("&"):
            code = int(reference[3:-1], 16) if reference[2] == "x" else int(reference[2:-1])
            is_surrogate = 0xD800 <= code <= 0xDFFF
            if code <= 0x10FFFF and not is_surrogate and not _FORBIDDEN.match(chr(code)):
                return reference
            reference = chr(min(code, 0x10FFFF))
        count += 1
        return " " if reference in _LINE_BREAKS else ""

    text = _FORBIDDEN.sub(replaced, text)
    if count:
        dropped(count)
    return text


def _decoded(path: Path, encoding: str, chunks: Iterator[bytes]) -> Iterator[str]:
    """Yield decoded chunks until the first invalid byte; raise DataError at the end if there is one."""
    is_wide = encoding.startswith(("utf-16", "utf-32"))  # these do not support "surrogateescape"
    decoder = codecs.getincrementaldecoder(encoding)("strict" if is_wide else "surrogateescape")
    invalid: dict[int, str] = {}
    lines = 1
    try:
        for chunk in chain(chunks, [b""]):
            text = decoder.decode(chunk, final=not chunk)
            for match in _INVALID_BYTE.finditer(text):
                line = lines + text.count("\n", 0, match.start())
                byte = ord(match[0]) - 0xDC00
                around = text[max(0, match.start() - 20) : match.end() + 20]
                excerpt = _INVALID_BYTE.sub("\ufffd", around).replace("\n", " ").strip()
                invalid.setdefault(line, f'line {line:,}: byte 0x{byte:02x} ("{clip(excerpt)}")')
            lines += text.count("\n")
            if not invalid:
                yield text
    except UnicodeError as error:
        raise DataError(f"{path}: not valid {_shown(encoding)}: {error}. Export the TMX file again as UTF-8.") from None
    if invalid:
        shown = [*invalid.values()][:_MOST_SHOWN]
        more = [f"... and {len(invalid) - len(shown):,} more"] if len(invalid) > len(shown) else []
        raise DataError(
            f"{path}: {len(invalid):,} line{'s' * (len(invalid) != 1)} with bytes that are not valid "
            f"{_shown(encoding)}:\n" + "\n".join([*shown, *more]) + "\nRepair these lines; or, if the whole file has "
            "another encoding, export it again as UTF-8, or declare the encoding in its first line: "
            '<?xml version="1.0" encoding="windows-1252"?>.'
        )


def _shown(encoding: str) -> str:
    return encoding.removesuffix("-sig").upper()


def _encoding(path: Path, head: bytes) -> str:
    """Return the encoding by the byte order mark, the first characters, or the declaration; UTF-8 without any."""
    for start, encoding in _BOMS:
        if head.startswith(start):
            return encoding
    match = _DECLARATION.match(head)
    declared = match[1].decode("ascii", "replace") if match else "utf-8"
    try:
        readable = b"<?xml".decode(declared) == "<?xml"
        codecs.getincrementaldecoder(declared)
    except UnicodeError:
        readable = False
    except (LookupError, ValueError):
        raise DataError(
            f"{path}: declares the unknown encoding {clip(declared, 40)!r}. Export the TMX file again as UTF-8."
        ) from None
    if not readable or codecs.lookup(declared).name == "utf-8":
        return "utf-8"  # often written with a wrong declaration of UTF-16
    if sum(byte > 0x7F for byte in head) >= _ENOUGH and _is_utf8(head):
        raise DataError(
            f"{path}: declares the encoding {declared}, but is UTF-8. Correct its first line: "
            '<?xml version="1.0" encoding="UTF-8"?>.'
        )
    return declared.lower()


def _is_utf8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True
