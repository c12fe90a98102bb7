"""Marian's binary shortlists (`lex.s2t.bin`), made from a lexical translation table.

File, in little-endian order: uint64 magic, checksum, number F of the first target ids that are always allowed, number
of ids per source id at most, count of offsets, count of ids; the offsets (uint64), one per source id and the end; the
ids (uint32).  The targets of a sentence are the ids below F, the ids of each source token, and, if both sides have one
vocabulary, the source tokens themselves.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import UsageError
from dragoman.formats.importing.marian_files.items import ADVICE, begins_with
from dragoman.io.reading import read_bytes
from dragoman.tokenizers import EOS, UNK

_MAGIC = struct.pack("<Q", 0xF11A48D5013417F5)
_HEADER = struct.Struct("<8s5Q")
_MAX_BYTES = 1 << 30
_MASK = (1 << 64) - 1


def is_lexical_shortlist(path: Path) -> bool:
    """Return whether a file can be read and begins like a shortlist."""
    return begins_with(path, _MAGIC)


def read_shortlist(path: Path, source: Sequence[int], target: Sequence[int], shared: bool, weights: str) -> Shortlist:
    """Return the shortlist of a file in our ids.  Raises UsageError if it is damaged or of another vocabulary.

    source, target: for each of our ids that of Marian, -1 if Marian has none.  shared: whether both sides have one
    vocabulary.  weights: sha256 of the weights.
    """
    content = read_bytes(path, UsageError, ADVICE, _MAX_BYTES)
    if len(content) < _HEADER.size or not content.startswith(_MAGIC):
        raise UsageError(f"{path}: not a binary shortlist of Marian. {ADVICE}")
    _, checksum, first, best, offset_count, id_count = _HEADER.unpack_from(content)
    expected = _HEADER.size + 8 * offset_count + 4 * id_count
    if expected != len(content):
        raise UsageError(f"{path}: {len(content):,} bytes; its header specifies {expected:,}. {ADVICE}")
    if _checksum(content[16:]) != checksum:
        raise UsageError(f"{path}: its checksum does not match. {ADVICE}")
    offsets = np.frombuffer(content, "<u8", offset_count, _HEADER.size)
    ids = np.frombuffer(content, "<u4", id_count, _HEADER.size + 8 * offset_count)
    sizes = max(source) + 1, max(target) + 1
    if offset_count != sizes[0] + 1 or offsets[-1] != id_count or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise UsageError(f"{path}: its offsets are not those of {sizes[0]:,} source tokens. {ADVICE}")
    if id_count and ids.max() >= sizes[1]:
        raise UsageError(f"{path}: an id of {ids.max():,}, but the target has {sizes[1]:,} tokens. {ADVICE}")
    ours = {theirs: i for i, theirs in enumerate(target) if theirs >= 0}
    return _converted(source, ours, (offsets, ids), (first, best), shared, len(target), weights)


def _converted(
    source: Sequence[int],
    ours: Mapping[int, int],
    lists: tuple[NDArray[np.uint64], NDArray[np.uint32]],
    limits: tuple[int, int],
    shared: bool,
    target_size: int,
    weights: str,
) -> Shortlist:
    (offsets, ids), (first, best) = lists, limits
    starts, listed, longest = array("i", [0]), array("i"), 0
    for theirs in source:
        tokens = set() if theirs < 0 else {ours[token] for token in ids[offsets[theirs] : offsets[theirs + 1]].tolist()}
        if shared and theirs >= 0:
            tokens.add(ours[theirs])
        listed.extend(sorted(tokens))
        starts.append(len(listed))
        longest = max(longest, len(tokens))
    always = sorted({UNK, EOS} | {ours[token] for token in range(min(first, len(ours))) if token in ours})
    return Shortlist(max(longest, min(best, target_size)), target_size, weights, array("i", always), starts, listed)


def _checksum(content: bytes) -> int:
    """Return Marian's checksum of whole words of 64 bits."""
    seed = 0
    for (word,) in struct.iter_unpack("<Q", content[: len(content) // 8 * 8]):
        seed ^= (word + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & _MASK
    return seed
