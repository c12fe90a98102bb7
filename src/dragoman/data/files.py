"""The files named in `[data]`, and a hash of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from dragoman.config import FileData, resolve_path
from dragoman.io.reading import hash_file

__all__ = ["files_hash", "train_files", "valid_file"]


def train_files(data: FileData) -> list[Path]:
    """Return the training files, in order."""
    return [resolve_path(path, data.root) for path in data.train]


def valid_file(data: FileData) -> Path | None:
    """Return the validation file, or None if there is none."""
    return None if data.valid is None else resolve_path(data.valid, data.root)


def files_hash(paths: Iterable[Path]) -> str:
    """Return a hash of the contents of the files, in order, as 16 hexadecimal digits.  Raises OSError."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        digest.update(bytes.fromhex(hash_file(path, "blake2b")))
    return digest.hexdigest()
