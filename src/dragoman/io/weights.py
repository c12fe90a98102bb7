"""The files of a model folder: checked against their sha256, weights also against their own header; never mapped."""

from __future__ import annotations

import hashlib
import json
import os
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import ModelFolderError
from dragoman.io.reading import open_regular

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["file_problem", "load_file"]

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
    """What contradicts the header of a safetensors file of `size` bytes, or the empty string.

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
        return f"{size:,} bytes: not a safetensors file"
    return "" if announced == size else f"{size:,} bytes; its header announces {announced:,}"


def load_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, in memory.  Raises `ModelFolderError` where it is anything else, such as a
    pickle.

    The file is read rather than mapped, because a mapped file that is cut while it is in use ends the process.
    """
    import safetensors.torch
    from safetensors import SafetensorError

    try:
        with open_regular(path) as file:
            if problem := _header_problem(file, os.fstat(file.fileno()).st_size):
                raise ModelFolderError(
                    f"{path}: not a safetensors file, or damaged ({problem}). Copy the folder again, whole."
                )
            file.seek(0)
            content = file.readall()
        return safetensors.torch.load(content)
    except FileNotFoundError:
        raise ModelFolderError(f"{path}: missing. Copy the folder again, whole.") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ModelFolderError(f"{path}: not a safetensors file ({error}); no other format is read") from None
