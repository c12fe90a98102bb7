"""Suffixes of file names; apart from `lines`, which imports decompressors."""

from __future__ import annotations

from pathlib import Path

COMPRESSED_SUFFIXES = (".gz", ".zst", ".xz")


def plain_suffix(path: Path) -> str:
    """Return the suffix of a file name, ignoring a final `.gz`, `.zst` or `.xz`."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED_SUFFIXES else path.suffix
