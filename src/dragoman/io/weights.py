"""The files of a model folder: checked against their sha256, weights also against their own header; never mapped."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import ModelFolderError
from dragoman.io.reading import open_regular

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["file_problem", "load_file", "read_header", "read_safetensors"]

_DTYPES = {
    "BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "U16": ("uint16", 2), "I16": ("int16", 2),
    "U32": ("uint32", 4), "I32": ("int32", 4), "U64": ("uint64", 8), "I64": ("int64", 8), "F16": ("float16", 2),
    "BF16": ("bfloat16", 2), "F32": ("float32", 4), "F64": ("float64", 8), "C64": ("complex64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2": ("float8_e5m2", 1), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
}  # fmt: skip
"""dtype in a safetensors file -> name in torch, bytes."""

_MOST = 1 << 30
"""Bytes per system call: no platform accepts more than 2 GiB."""
_LARGEST = 1 << 30
"""Largest file of a model folder in bytes; of weights, the header says how large they are."""
_LARGEST_HEADER = 100_000_000
"""Of a safetensors file, in bytes: the limit of that library."""


def file_problem(path: Path, sha256: str) -> str:
    """What is wrong with a file of a model folder, or the empty string."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if path.suffix == ".safetensors":
                if problem := _header_problem(file, size):
                    return f"is cut or altered ({problem})"
            elif size > _LARGEST:
                return f"has {size:,} bytes; accepted: at most {_LARGEST:,}"
            file.seek(0)
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                return f"is cut or altered ({size:,} bytes; its sha256 is not the one in meta.json)"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return ""


def _header_problem(file: FileIO, size: int) -> str:
    """What contradicts the header of a safetensors file of `size` bytes, or the empty string."""
    try:
        _read_header(file, size)
    except ValueError as error:
        return str(error)
    return ""


def _read_header(file: FileIO, size: int) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file of `size` bytes, and its length.  Raises ValueError where it is damaged.

    The header is 8 bytes with its length, and JSON with the place of each tensor behind it.
    """
    try:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size, _LARGEST_HEADER):
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
        end = max((about["data_offsets"][1] for name, about in header.items() if name != "__metadata__"), default=0)
        announced = 8 + length + int(end)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ValueError(f"{size:,} bytes: not a safetensors file") from None
    if announced != size:
        raise ValueError(f"{size:,} bytes; its header announces {announced:,}")
    return header, 8 + length


def read_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file, which has an entry per tensor: `dtype`, `shape`, `data_offsets`.

    No tensor is read.  Raises `ModelFolderError`.
    """
    with _named(path), open_regular(path) as file:
        header, _ = _read_header(file, os.fstat(file.fileno()).st_size)
        header.pop("__metadata__", None)
        _check_places(header)
        return header


def read_safetensors(path: Path) -> tuple[dict[str, Any], bytearray]:
    """Header and content of a safetensors file, in memory.  Raises OSError, or ValueError where it is damaged."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        header, _ = _read_header(file, size)
        file.seek(0)
        content = bytearray(size)
        rest = memoryview(content)
        while rest and (count := file.readinto(rest[:_MOST])):
            rest = rest[count:]
        if rest:
            raise ValueError(f"{size - len(rest):,} bytes; its header announces {size:,}")
    return header, content


def load_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, in memory.  Raises `ModelFolderError` where it is anything else, such as a
    pickle.

    The file is read rather than mapped, because a mapped file that is cut while it is in use ends the process.  The
    tensors are views of one buffer, so that the weights are in memory once.
    """
    with _named(path):
        header, content = read_safetensors(path)
        header.pop("__metadata__", None)
        _check_places(header)
        if sys.byteorder == "big":
            import safetensors.torch

            return safetensors.torch.load(bytes(content))
        start = 8 + int.from_bytes(content[:8], "little")
        return {name: _view(content, start, about) for name, about in header.items()}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Raise `ModelFolderError` in place of other errors."""
    try:
        yield
    except FileNotFoundError:
        raise ModelFolderError(f"{path}: missing. Copy the folder again, whole.") from None
    except OSError as error:
        raise ModelFolderError(f"{path}: not a safetensors file ({error}); no other format is read") from None
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise ModelFolderError(
            f"{path}: not a safetensors file, or damaged ({error or 'too large for the memory'}). "
            "Copy the folder again, whole."
        ) from None


def _check_places(header: dict[str, Any]) -> None:
    """Check that the tensors follow each other without gaps, and have sizes that fit.  Raises ValueError."""
    try:
        end = 0
        for name, about in sorted(header.items(), key=lambda entry: entry[1]["data_offsets"]):
            dtype, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
            if any(type(number) is not int or number < 0 for number in [*shape, *offsets]):
                raise ValueError(f"shape {shape}, data_offsets {offsets} of {name}")
            begin, after = offsets
            if dtype not in _DTYPES:
                raise ValueError(f"dtype {dtype} of {name}; accepted: {', '.join(_DTYPES)}")
            if begin != end or after - begin != math.prod(shape) * _DTYPES[dtype][1]:
                raise ValueError(f"{name}, {dtype} {shape}, is at {begin} to {after}, after {end}")
            end = after
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its header: {error}") from None


def _view(content: bytearray, start: int, about: dict[str, Any]) -> Tensor:
    """A tensor in `content`, whose tensors begin at `start`; a copy where it is not aligned."""
    import torch

    name, size = _DTYPES[about["dtype"]]
    dtype, shape = getattr(torch, name), about["shape"]
    begin, end = (start + offset for offset in about["data_offsets"])
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    if begin % size:  # never in a file that the library has written
        content, begin, end = content[begin:end], 0, end - begin
    return torch.frombuffer(content, dtype=dtype, count=(end - begin) // size, offset=begin).reshape(shape)
