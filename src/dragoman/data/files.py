"""The files of `[data]`: where they are, and one hash of what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from dragoman.config import LabelledData, MaskedData, TaggedData, TextData, TreeData, resolve_path

__all__ = ["FileData", "files_hash", "train_files", "valid_file"]

FileData = TextData | MaskedData | TaggedData | LabelledData | TreeData
"""The kinds of `[data]` that name files of one form."""


def train_files(data: FileData) -> list[Path]:
    """The files to train on, in order."""
    return [resolve_path(path, data.root) for path in data.train]


def valid_file(data: FileData) -> Path | None:
    """The file to score on; None where none is named."""
    return None if data.valid is None else resolve_path(data.valid, data.root)


def files_hash(paths: Iterable[Path]) -> str:
    """The bytes of the files, in their order, as 16 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()
