"""The items of a Marian model file: arrays by name, and its settings in YAML, for `.npz` and for binary `.bin` files.

A binary file has, in little-endian order:

    uint64 version (1), uint64 number of items n
    n headers of four uint64: length of the name, type, number of dimensions, bytes of data
    n names, each ending with a zero byte; n shapes of int32
    uint64 length of the padding, the padding, and the data of the n items

Data are padded, so that an item may have more bytes than its array.  8-bit and 16-bit matrices (types `_INTGEMM`) are
integers with one scale, a float32 behind them: value = integer / scale.  They are stored with rows and columns
exchanged, except for embeddings, although the shape is that of the matrix.

Nothing in a file is executed; all lengths are compared with the size of the file before memory is used for them.
"""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dragoman.errors import DragomanError, UsageError
from dragoman.io.reading import read_bytes

Array = NDArray[Any]

ADVICE = "Download the file again, completely."
SETTINGS = "special:model.yml"
"""Name of the item that holds the settings."""

_VERSION = struct.pack("<Q", 1)
_HEADER = struct.Struct("<4Q")
_NPY = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_TYPES = {
    0x0101: "<i1", 0x0102: "<i2", 0x0104: "<i4", 0x0108: "<i8", 0x0201: "<u1", 0x0202: "<u2", 0x0204: "<u4",
    0x0208: "<u8", 0x0402: "<f2", 0x0404: "<f4", 0x0408: "<f8",
}  # fmt: skip
_INTGEMM = {0x4101: "<i1", 0x4102: "<i2"}
_MAX_FILE = 1 << 35
_MAX_NAME, _MAX_ITEMS, _MAX_DIMENSIONS = 1 << 10, 1 << 16, 8
_MOST_COMPRESSED = 20
"""Marian does not compress; a file that grows by more than this factor would fill the memory."""


_ERRORS = (
    ValueError, TypeError, SyntaxError, LookupError, OverflowError, MemoryError, RecursionError, EOFError, OSError,
    RuntimeError, NotImplementedError, struct.error, zlib.error, zipfile.BadZipFile, tokenize.TokenError,
)  # fmt: skip
"""What zipfile and the header of .npy raise for bytes without sense."""


class _Damaged(ValueError):
    """What is wrong with a file."""


def is_binary_model(path: Path) -> bool:
    """Return whether a file can be read and begins like a binary model."""
    return begins_with(path, _VERSION)


def begins_with(path: Path, magic: bytes) -> bool:
    """Return whether a file can be read and begins with these bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


def read_items(path: Path) -> dict[str, Array]:
    """Return the arrays of a model file in the shapes that Marian computes with; `SETTINGS` is an array of bytes.

    Scales of activations (`_QuantMultA`), which only Marian's 8-bit arithmetic needs, are left out.  Raises UsageError
    for a file that is damaged or has other types of numbers.
    """
    content = read_bytes(path, UsageError, ADVICE, _MAX_FILE)
    try:
        if content.startswith(_VERSION):
            return dict(_binary_items(content))
        if content.startswith(b"PK"):
            return dict(_npz_items(content))
        raise _Damaged(f"neither a binary model nor an .npz archive (it begins with {content[:8]!r})")
    except DragomanError:
        raise
    except _ERRORS as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UsageError(f"{path}: not a model file of Marian, or damaged: {reason}. {ADVICE}") from None


# --------------------------------------------------------------------------------------------------------------- binary


class _Reader:
    """Reads a file from its beginning."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position = memoryview(content), 0

    def take(self, count: int, what: str) -> memoryview:
        if count > len(self.content) - self.position:
            left = len(self.content) - self.position
            raise _Damaged(f"truncated: {what} needs {count:,} bytes at {self.position:,}, where {left:,} are left")
        begin, self.position = self.position, self.position + count
        return self.content[begin : self.position]

    def number(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")


def _binary_items(content: bytes) -> Iterator[tuple[str, Array]]:
    reader = _Reader(content)
    reader.take(len(_VERSION), "the version")
    count = reader.number("the number of items")
    if not 0 < count <= _MAX_ITEMS:
        raise _Damaged(f"{count:,} items; accepted: 1 to {_MAX_ITEMS:,}")
    headers = list(_HEADER.iter_unpack(reader.take(count * _HEADER.size, "the headers")))
    names = [_name(reader, length) for length, *_ in headers]
    if len(set(names)) < count:
        raise _Damaged("two items have the same name")
    shapes = [_shape(reader, name, dimensions) for name, (_, _, dimensions, _) in zip(names, headers, strict=True)]
    reader.take(reader.number("the length of the padding"), "the padding")
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        data = reader.take(size, name)
        if not name.endswith("_QuantMultA"):
            yield name, _array(name, kind, shape, data)


def _name(reader: _Reader, length: int) -> str:
    if not 1 < length <= _MAX_NAME:
        raise _Damaged(f"a name of {length:,} bytes; accepted: 2 to {_MAX_NAME:,}")
    name = bytes(reader.take(length, "a name"))
    if not name.endswith(b"\0") or not name[:-1].isascii() or b"\0" in name[:-1]:
        raise _Damaged(f"{name[:40]!r} is not a name of ASCII characters that ends with a zero byte")
    return name[:-1].decode()


def _shape(reader: _Reader, name: str, dimensions: int) -> tuple[int, ...]:
    if not 0 < dimensions <= _MAX_DIMENSIONS:
        raise _Damaged(f"{name}: {dimensions:,} dimensions; accepted: 1 to {_MAX_DIMENSIONS}")
    shape = struct.unpack(f"<{dimensions}i", reader.take(4 * dimensions, f"the shape of {name}"))
    if min(shape) < 1:
        raise _Damaged(f"{name}: shape {shape}")
    return shape


def _array(name: str, kind: int, shape: tuple[int, ...], data: memoryview) -> Array:
    count = math.prod(shape)
    if kind not in _TYPES and kind not in _INTGEMM:
        raise _Damaged(
            f"{name}: numbers of type {kind:#06x} (packed matrices of FBGEMM have such a type); accepted: float32, "
            "float16 and intgemm's 8-bit and 16-bit integers, as marian-conv writes them with -g intgemm8"
        )
    dtype = np.dtype(_TYPES.get(kind) or _INTGEMM[kind])
    needed = count * dtype.itemsize + (4 if kind in _INTGEMM else 0)
    if len(data) < needed:
        raise _Damaged(f"{name}: {len(data):,} bytes; shape {shape} needs {needed:,}")
    values = np.frombuffer(data, dtype, count)
    if kind not in _INTGEMM:
        return values.reshape(shape)
    (scale,) = struct.unpack("<f", data[needed - 4 : needed])
    if not 1e-30 < scale < 1e30:
        raise _Damaged(f"{name}: the scale of its integers is {scale}")
    floats = values.astype(np.float32) / np.float32(scale)
    if "Wemb" in name:
        return floats.reshape(shape)
    rows = count // shape[-1]
    return floats.reshape(shape[-1], rows).T.reshape(shape)


# ------------------------------------------------------------------------------------------------------------------ npz


def _npz_items(content: bytes) -> Iterator[tuple[str, Array]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if len({member.filename for member in members}) < len(members):
            raise _Damaged("two members have the same name")
        if sum(member.file_size for member in members) > _MOST_COMPRESSED * len(content):
            raise _Damaged(f"its members have more than {_MOST_COMPRESSED} times the size of the file")
        for member in members:
            yield member.filename.removesuffix(".npy"), _npy_array(member.filename, archive.read(member))


def _npy_array(name: str, data: bytes) -> Array:
    """Read a `.npy` member without objects; the size of its array is that of the bytes that are there."""
    file = io.BytesIO(data)
    version = npy.read_magic(file)
    if version not in _NPY:
        raise _Damaged(f"{name}: version {version} of the .npy format")
    shape, by_columns, dtype = _NPY[version](file)
    if dtype.hasobject or dtype.kind not in "iuf":
        raise _Damaged(f"{name}: objects of type {dtype}; accepted: numbers")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise _Damaged(f"{name}: {len(data) - file.tell():,} bytes for shape {shape} of {dtype}")
    array: Array = np.frombuffer(data, dtype, offset=file.tell())
    return array.reshape(shape, order="F" if by_columns else "C")
