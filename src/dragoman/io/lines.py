"""Lines of a text file, plain or compressed; a line ends at "\\n" and nowhere else."""

from __future__ import annotations

import gzip
import io
import lzma
import stat
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO

import zstandard

from dragoman.errors import DataError

__all__ = [
    "COMPRESSED_SUFFIXES",
    "clip",
    "count_lines",
    "decode_line",
    "has_half_pair",
    "open_lines",
    "plain_suffix",
    "raw_lines",
    "read_lines",
]

COMPRESSED_SUFFIXES = (".gz", ".zst", ".xz")
BOM = b"\xef\xbb\xbf"

_CHUNK = 1 << 20
_LONGEST_LINE = 64 << 20
"""Bytes of a line: a device such as /dev/zero, or a file that is not text, would otherwise fill the memory."""
_CUT_OR_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError)


class _ZstdStream(io.RawIOBase):
    """Decompressed bytes of a zstandard file; unlike the package's own reader, EOFError where the file is cut."""

    def __init__(self, compressed: IO[bytes]) -> None:
        self._compressed = compressed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._inside_frame = False
        self._pending = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            chunk = self._pending or self._compressed.read(_CHUNK)
            if not chunk:
                if self._inside_frame:
                    raise EOFError("the last zstandard frame is cut")
                return 0
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready = memoryview(self._frame.decompress(chunk))
            self._pending = self._frame.unused_data if self._frame.eof else b""
            self._inside_frame = not self._frame.eof
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        self._compressed.close()
        super().close()


def _open_stream(path: Path) -> io.BufferedIOBase:
    match path.suffix:
        case ".gz":
            return gzip.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
        case ".zst":
            return io.BufferedReader(_ZstdStream(path.open("rb")), _CHUNK)
        case _:
            return path.open("rb")


def plain_suffix(path: Path) -> str:
    """The suffix that says what a file holds, with `.gz`, `.zst` or `.xz` behind it left out."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED_SUFFIXES else path.suffix


def clip(text: str, limit: int = 80) -> str:
    """`text` on one line of at most `limit` characters, for a message."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 2 * limit])
    return shown if len(text) <= limit else shown[: limit - 1] + "…"


def has_half_pair(text: str) -> bool:
    """Whether half a surrogate pair, which is no character, is in the text."""
    return any("\ud800" <= c <= "\udfff" for c in text)


def _unreadable(path: Path, error: OSError) -> DataError:
    reason = error.strerror or str(error)
    return DataError(f"{path}: cannot be read: {reason}. Give the path of an existing text file that may be read.")


def raw_lines(stream: IO[bytes] | io.BufferedIOBase, where: str) -> Iterator[bytes]:
    """Yield the raw lines of a stream without their "\\n".  Raises DataError for a line longer than 64 MiB."""
    for number, line in enumerate(iter(partial(stream.readline, _LONGEST_LINE), b""), start=1):
        if line.endswith(b"\n"):
            yield line[:-1]
        elif len(line) < _LONGEST_LINE:
            yield line
        else:
            raise DataError(
                f"{where}, line {number:,}: longer than {_LONGEST_LINE >> 20} MiB, so this is not text of one sentence "
                "per line. Give a text file whose lines end in \\n."
            )


def open_lines(path: Path) -> Iterator[bytes]:
    """Yield the raw lines of a file without their "\\n"; `.gz`, `.zst` and `.xz` are decompressed on the way.

    A last line without "\\n" counts.  Raises DataError where the file cannot be read or is cut or damaged, and for a
    line longer than 64 MiB.
    """
    number = 0
    try:
        with _open_stream(path) as stream:
            for number, line in enumerate(raw_lines(stream, str(path)), start=1):  # noqa: B007 (in the message below)
                yield line
    except _CUT_OR_DAMAGED as error:
        raise DataError(
            f"{path}: the compressed data are cut or damaged after line {number:,} ({error}). "
            "Copy or download the file again."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def count_lines(path: Path) -> int:
    """The number of lines of a file; 0 where it is empty.

    Raises DataError as `open_lines` does, and for a pipe or a device, whose lines could not be read after that.
    """
    count, last = 0, b"\n"
    try:
        if not (stat.S_ISREG(mode := path.stat().st_mode) or stat.S_ISDIR(mode)):
            raise DataError(
                f"{path}: not a regular file. It is read more than once, so a pipe or a device cannot be used here: "
                "save the text as a file and name that."
            )
        if path.suffix in COMPRESSED_SUFFIXES:
            return sum(1 for _ in open_lines(path))
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                count += chunk.count(b"\n")
                last = chunk[-1:]
    except OSError as error:
        raise _unreadable(path, error) from error
    return count + (last != b"\n")


def _likely_encoding(raw: bytes, line: int) -> str:
    if line == 1 and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "UTF-16"
    return "WINDOWS-1252"


def decode_line(raw: bytes, line: int, where: str) -> str:
    """One raw line as text: UTF-8, without a byte order mark at the start of line 1 and without "\\r" at the end.

    Raises DataError naming `where`, the line and the offset in bytes where the line is not UTF-8.
    """
    start = len(BOM) if line == 1 and raw.startswith(BOM) else 0
    try:
        return raw[start:].decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        offset = start + error.start
        raise DataError(
            f"{where}, line {line:,}: byte 0x{raw[offset]:02x} at byte {offset} of the line is not valid UTF-8 "
            f'("{clip(raw.decode("utf-8", "replace"))}"). Only UTF-8 is accepted: convert the file, perhaps with '
            f"`iconv -f {_likely_encoding(raw, line)} -t UTF-8`, or repair the line; `dragoman doctor` lists them all."
        ) from error


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file as text (see `decode_line`).  Raises DataError on the first bad line."""
    for number, raw in enumerate(open_lines(path), start=1):
        yield decode_line(raw, number, str(path))
