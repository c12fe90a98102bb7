"""Weights in safetensors files, validated against their own header and never memory-mapped."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.errors import ModelFolderError
from dragoman.io.reading import COPY_AGAIN, MAX_READ, open_regular

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

_DTYPES = {
    "BOOL": ("bool", 1), "U8": ("uint8", 1), "I8": ("int8", 1), "U16": ("uint16", 2), "I16": ("int16", 2),
    "U32": ("uint32", 4), "I32": ("int32", 4), "U64": ("uint64", 8), "I64": ("int64", 8), "F16": ("float16", 2),
    "BF16": ("bfloat16", 2), "F32": ("float32", 4), "F64": ("float64", 8), "C64": ("complex64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1),
    "F8_E5M2": ("float8_e5m2", 1), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1),
}  # fmt: skip
"""dtype in a safetensors file -> name in torch, bytes per element."""

_MAX_FILE = 1 << 30
"""Largest file of a model folder in bytes, except weights, whose size their header gives."""
_MAX_HEADER = 100_000_000
"""Maximum size of a header in bytes, as in the safetensors library."""


def file_problem(path: Path, sha256: str) -> str:
    """Return what is wrong with a file of a model folder, or an empty string."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if path.suffix == ".safetensors":
                _read_header(file, size)
                file.seek(0)
            elif size > _MAX_FILE:
                return f"has {size:,} bytes; accepted: at most {_MAX_FILE:,}"
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                return f"is truncated or altered ({size:,} bytes; its sha256 differs from the one in meta.json)"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    except ValueError as error:
        return f"is truncated or altered ({error})"
    return ""


def _read_header(file: FileIO, size: int) -> dict[str, Any]:
    """Return the header of a safetensors file of `size` bytes.  Raises ValueError if it is damaged.

    The file begins with 8 bytes for the length of the header and the header in JSON.
    """
    try:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size, _MAX_HEADER):
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        expected = 8 + length + int(end)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ValueError(f"{size:,} bytes: not a safetensors file") from None
    if expected != size:
        raise ValueError(f"{size:,} bytes; its header specifies {expected:,}")
    assert isinstance(header, dict)
    return header


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file, which maps each tensor to its `dtype`, `shape` and `data_offsets`.

    No tensor is read.  Raises ModelFolderError.
    """
    with _model_folder_errors(path), open_regular(path) as file:
        return _tensor_entries(_read_header(file, os.fstat(file.fileno()).st_size))


def dtype_name(code: str) -> str:
    """Return the name in PyTorch and NumPy of a dtype in a header: "F32" -> "float32"."""
    return _DTYPES[code][0]


def read_safetensors(path: Path) -> tuple[dict[str, Any], bytearray]:
    """Return header and content of a safetensors file.  Raises OSError, or ValueError if the file is damaged."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        header = _read_header(file, size)
        file.seek(0)
        content = bytearray(size)
        if missing := _fill(file, content):
            raise ValueError(f"{size - missing:,} bytes; its header specifies {size:,}")
    return header, content


def _fill(file: FileIO, content: bytearray) -> int:
    """Read from a file until `content` is full; return how many bytes are missing at the end of the file."""
    rest = memoryview(content)
    while rest and (count := file.readinto(rest[:MAX_READ])):
        rest = rest[count:]
    return len(rest)


def load_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.  Raises ModelFolderError if it is anything else, such as a pickle."""
    return dict(TensorFile(path))


def load_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the tensors of a safetensors file as views of one buffer, bfloat16 as float32; PyTorch is not needed.

    Raises ModelFolderError as `load_file`, also for dtypes that NumPy does not have (float8).
    """
    with _model_folder_errors(path):
        header, content = read_safetensors(path)
        start = 8 + int.from_bytes(content[:8], "little")
        return {name: _array(content, start, name, entry) for name, entry in _tensor_entries(header).items()}


def _array(content: bytearray, start: int, name: str, entry: dict[str, Any]) -> NDArray[np.generic]:
    import numpy as np

    kind, size = _DTYPES[entry["dtype"]]
    if kind.startswith("float8"):
        raise ValueError(f"dtype {entry['dtype']} of {name}: needs PyTorch")
    widened = kind == "bfloat16"  # the upper half of a float32
    dtype = np.dtype("uint16" if widened else kind).newbyteorder("<")
    begin, end = entry["data_offsets"]
    array = np.frombuffer(content, dtype, (end - begin) // size, start + begin).reshape(entry["shape"])
    return (array.astype(np.uint32) << 16).view(np.float32) if widened else array


@contextmanager
def _model_folder_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ModelFolderError(f"{path}: missing. {COPY_AGAIN}") from None
    except OSError as error:
        raise ModelFolderError(f"{path}: not a safetensors file ({error}); no other format is accepted") from None
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise ModelFolderError(
            f"{path}: not a safetensors file, or damaged ({error or 'too large for the memory'}). {COPY_AGAIN}"
        ) from None


def _tensor_entries(header: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of the tensors, which are contiguous and match their shapes.  Raises ValueError otherwise."""
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    try:
        end = 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
            if any(type(number) is not int or number < 0 for number in [*shape, *offsets]):
                raise ValueError(f"shape {shape}, data_offsets {offsets} of {name}")
            begin, after = offsets
            if dtype not in _DTYPES:
                raise ValueError(f"dtype {dtype} of {name}; accepted: {', '.join(_DTYPES)}")
            if begin != end or after - begin != math.prod(shape) * _DTYPES[dtype][1]:
                raise ValueError(f"{name}, {dtype} {shape}, has bytes {begin} to {after}, not its size from {end}")
            end = after
        return entries
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its header: {error}") from None


class TensorFile(Mapping[str, "Tensor"]):
    """A safetensors file whose tensors, or some of their rows, are read whenever they are used."""

    def __init__(self, path: Path) -> None:
        """Read the header.  Raises ModelFolderError."""
        self.path = path
        with _model_folder_errors(path), open_regular(path) as file:
            self._entries = _tensor_entries(_read_header(file, os.fstat(file.fileno()).st_size))
            self._start = file.tell()

    def __getitem__(self, name: str) -> Tensor:
        return self.rows(name)

    def __contains__(self, name: object) -> bool:  # that of Mapping reads the tensor
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(entry["shape"]) for name, entry in self._entries.items()}

    def rows(self, name: str, begin: int = 0, end: int | None = None) -> Tensor:
        """Return the rows from `begin` to `end` of a tensor, or the whole tensor; a copy.  Raises ModelFolderError."""
        import torch

        entry = self._entries[name]
        offset, after = entry["data_offsets"]
        shape = list(entry["shape"])
        if end is not None:
            size = (after - offset) // max(1, shape[0])  # bytes of a row
            offset, after, shape[0] = offset + begin * size, offset + end * size, end - begin
        with _model_folder_errors(self.path), open_regular(self.path) as file:
            content = bytearray(after - offset)
            file.seek(self._start + offset)
            if missing := _fill(file, content):
                raise ValueError(f"it has become shorter by {missing:,} bytes")
            _to_little_endian(content, _DTYPES[entry["dtype"]][1])
            dtype = getattr(torch, _DTYPES[entry["dtype"]][0])
            return (torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)).reshape(shape)


def write_tensors(path: Path, shapes: Mapping[str, Tensor], parts: Iterable[Tensor]) -> str:
    """Write a safetensors file tensor by tensor, with its bytes flushed to the disk, and return its sha256.

    shapes: a tensor of the shape and dtype of each tensor, which may be on the device "meta".  parts: contiguous parts
    of the tensors on the CPU, in `tensor_order`.  Raises OSError.
    """
    codes = {name: code for code, (name, _) in _DTYPES.items()}
    header: dict[str, Any] = {}
    end = 0
    for name in tensor_order(shapes):
        like = shapes[name]
        begin, end = end, end + like.numel() * like.element_size()
        code = codes[str(like.dtype).removeprefix("torch.")]
        header[name] = {"dtype": code, "shape": list(like.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for content in chain([len(text).to_bytes(8, "little"), text], map(_bytes, parts)):
            file.write(content)
            digest.update(content)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def tensor_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the order of tensors in a file, the largest elements first, as in files of the safetensors library."""
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def _bytes(tensor: Tensor) -> bytearray | memoryview:
    """Return the bytes of a contiguous tensor on the CPU, without a copy on little-endian computers."""
    import torch

    content = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
    if sys.byteorder == "little":
        return content
    copied = bytearray(content)
    _to_little_endian(copied, tensor.element_size())
    return copied


def _to_little_endian(content: bytearray, size: int) -> None:
    """Reverse the bytes of every element of `size` bytes, in place, on big-endian computers; and back."""
    if sys.byteorder == "big":
        for i in range(size // 2):
            j = size - 1 - i
            content[i::size], content[j::size] = content[j::size], content[i::size]
