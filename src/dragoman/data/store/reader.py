"""Prepared parallel text, read in chunks of at most 1,024 pairs, so that the memory does not depend on its size.

A segment is what one task of preparation writes: `00000.ids` and `00000.text`, one record per chunk.  A record holds
the lengths of all sources, those of all targets (uint32), then the values of the sources and of the targets without
gaps.  The table of chunks (TABLE) has the offset and the hash of each record; the hash is verified at every read.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.corpus import FilterStats
from dragoman.data.store.folder import (
    REMEDY,
    VERSION,
    DamagedStoreError,
    StoreFiles,
    damaged,
    load_tokenizer,
    read_about,
)
from dragoman.io.reading import read_json
from dragoman.tokenizers import EOS

PAIRS = 1024
"""Largest number of pairs in a chunk."""
_COLUMNS = "source_tokens target_tokens ids_at ids_bytes ids_hash text_at text_bytes text_hash"
TABLE = np.dtype([("segment", "<u4"), ("pairs", "<u4"), *((name, "<u8") for name in _COLUMNS.split())])
"""A row per chunk.  Tokens are counted without the end of sentence; offsets are bytes in the files of the segment."""
_LENGTH = np.dtype("<u4")
_CACHED = 600
"""Chunks in memory: more than two blocks of an epoch (see `EpochPlan`)."""
_TEXT = np.dtype(np.uint8)


def id_type(vocabulary: int) -> np.dtype[np.generic]:
    """Return the smallest type that holds all ids of a vocabulary."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def record_hash(content: bytes) -> int:
    """Return the 64-bit BLAKE2b hash of a record."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Record:
    """Values of pairs.  lengths: of the sources and of the targets; values: of all sources and all targets."""

    lengths: tuple[NDArray[np.uint32], NDArray[np.uint32]]
    values: tuple[NDArray[np.generic], NDArray[np.generic]]

    @classmethod
    def parse(cls, content: bytes, pairs: int, item: np.dtype[np.generic]) -> Record:
        """Return the record in these bytes.  Raises ValueError if lengths and values do not fit each other."""
        lengths = np.frombuffer(content, _LENGTH, 2 * pairs).reshape(2, pairs)
        values = np.frombuffer(content, item, offset=lengths.nbytes)
        split = int(lengths[0].sum(dtype=np.int64))
        if split + int(lengths[1].sum(dtype=np.int64)) != len(values):
            raise ValueError("lengths and values disagree")
        return cls((lengths[0], lengths[1]), (values[:split], values[split:]))

    def __bytes__(self) -> bytes:
        return b"".join(part.tobytes() for part in (*self.lengths, *self.values))

    @cached_property
    def ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the values of each source and of each target end."""
        src, tgt = (np.cumsum(lengths, dtype=np.int64) for lengths in self.lengths)
        return src, tgt

    def row(self, number: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return the values of the source and of the target of a pair."""
        src, tgt = (
            values[ends.item(number) - lengths.item(number) : ends.item(number)]
            for lengths, values, ends in zip(self.lengths, self.values, self.ends, strict=True)
        )
        return src, tgt

    def texts(self) -> list[tuple[str, str]]:
        """Return all pairs of a record of UTF-8.  Raises UnicodeDecodeError."""
        sides = []
        for side in (0, 1):
            data, ends = self.values[side].tobytes(), [0, *self.ends[side].tolist()]
            sides.append([data[a:b].decode() for a, b in pairwise(ends)])
        return list(zip(*sides, strict=True))


def text_record(pairs: Sequence[tuple[str, str]]) -> Record:
    """Return the record of at least one pair of texts, as UTF-8."""
    sides = [[text.encode() for text in texts] for texts in zip(*pairs, strict=True)]
    return _record(sides, [np.frombuffer(b"".join(rows), np.uint8) for rows in sides])


def ids_record(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], item: np.dtype[np.generic]) -> Record:
    """Return the record of at least one pair of token ids.  item: see `id_type`."""
    sides = list(zip(*pairs, strict=True))
    return _record(sides, [np.fromiter(chain.from_iterable(rows), item) for rows in sides])


def _record(sides: Sequence[Sequence[Sized]], values: Sequence[NDArray[np.generic]]) -> Record:
    src, tgt = (np.fromiter(map(len, rows), _LENGTH, len(rows)) for rows in sides)
    return Record((src, tgt), (values[0], values[1]))


def part_name(part: int, suffix: str = "") -> str:
    """Return the name of a file of a part of a store, which is one corpus."""
    return f"{part:03}{suffix}"


class Store:
    """Pairs of token ids by number, with a final EOS (sources if the model has it), and their text.

    Replacing the folder does not affect an open store (of up to 256 files).  Reading a chunk whose hash is not that of
    what was written raises DataError, and the store is built again by the next training run.
    """

    def __init__(self, folder: Path, content: str | None = None) -> None:
        """Open and verify a store.  content: the expected content hash.  Raises DamagedStoreError."""
        self.folder = folder
        about = read_about(folder, VERSION)
        if content is not None and about["content"] != content:
            raise DamagedStoreError(f"{folder}: store.json belongs to another store ({about['content']}). {REMEDY}")
        self.stats: str = about["account"]
        self.warnings: list[str] = about["warnings"]
        self.text_hash: str = about["text"]
        self.parts: list[tuple[int, float]] = [(part["pairs"], part["weight"]) for part in about["parts"]]
        self._tags: list[str | None] = [part.get("tag") for part in about["parts"]]
        self.keys: list[str] = [part["key"] for part in about["parts"]]
        self._files = StoreFiles(folder, about["files"], in_pieces=(".ids", ".text", ".hashes"))
        try:
            self._load()
        except BaseException:
            self._files.close()
            raise
        self._recent = lru_cache(_CACHED)(self._read)

    def _load(self) -> None:
        self.tokenizer = load_tokenizer(self.folder)
        self._sizes = (self.tokenizer.source_size, self.tokenizer.target_size)
        tables = []
        for part in range(len(self.parts)):
            file = self._files.open(part_name(part, ".chunks"))
            tables.append(np.frombuffer(file.read(0, len(file) - len(file) % TABLE.itemsize), TABLE))
        self.table = np.concatenate(tables)
        """The chunks of all parts (see TABLE)."""
        self.part_of_chunk = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
        self.begins: NDArray[np.int64] = np.concatenate([[0], np.cumsum(self.table["pairs"], dtype=np.int64)])
        """Number of the first pair of each chunk, and the number of pairs."""
        counts = [int(table["pairs"].sum(dtype=np.int64)) for table in tables]
        if counts != [pairs for pairs, _ in self.parts]:
            raise DamagedStoreError(
                f"{self.folder}: its files disagree on the numbers of pairs: {counts} and "
                f"{[pairs for pairs, _ in self.parts]}. {REMEDY}"
            )

    def __len__(self) -> int:
        return int(self.begins[-1])

    def chunk(self, chunk: int, kind: str = "ids") -> Record:
        """Return the ids (without EOS) or the text of a chunk.  Raises DataError if it is damaged."""
        return self._recent(chunk, kind)

    def _read(self, chunk: int, kind: str) -> Record:
        row = self.table[chunk]
        stem = part_name(int(self.part_of_chunk[chunk]), f"-{row['segment']:05}")
        file = self._files.open(f"{stem}.{kind}")
        content = file.read(int(row[f"{kind}_at"]), int(row[f"{kind}_bytes"]))
        if record_hash(content) != row[f"{kind}_hash"]:
            raise damaged(file.path)
        try:
            record = Record.parse(content, int(row["pairs"]), id_type(max(self._sizes)) if kind == "ids" else _TEXT)
        except ValueError:
            raise damaged(file.path) from None
        if kind == "ids" and any(int(v.max(initial=0)) >= n for v, n in zip(record.values, self._sizes, strict=True)):
            raise damaged(file.path)
        return record

    def locate(self, number: int) -> tuple[int, int]:
        """Return the chunk of a pair and its number in the chunk."""
        chunk = int(np.searchsorted(self.begins, number, side="right")) - 1
        return chunk, number - int(self.begins[chunk])

    def pair(self, number: int) -> tuple[list[int], list[int]]:
        """Return source and target ids.  Raises DataError if the chunk is damaged."""
        chunk, place = self.locate(number)
        src, tgt = self.chunk(chunk).row(place)
        end = [EOS] if self.tokenizer.sources_end else []
        return [*src.tolist(), *end], [*tgt.tolist(), EOS]

    def text(self, number: int) -> tuple[str, str]:
        """Return the filtered text of a pair.  Raises DataError as `pair` does."""
        chunk, place = self.locate(number)
        src, tgt = self.chunk(chunk, "text").row(place)
        return src.tobytes().decode(), tgt.tobytes().decode()

    @cached_property
    def _tag_ids(self) -> list[list[int]]:
        return [self.tokenizer.tagged(tag).tag_ids for tag in self._tags]

    def tag_ids(self, number: int) -> list[int]:
        """Return the tokens before the source of a pair that are not part of its text."""
        return self._tag_ids[self.part_of_chunk[self.locate(number)[0]]] if any(self._tags) else []

    def lengths(self, chunks: Iterable[int] | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens of each source and each target of these chunks (default: all), including EOS."""
        records = [self.chunk(chunk) for chunk in (range(len(self.table)) if chunks is None else chunks)]
        src, tgt = (np.concatenate([r.lengths[side].astype(np.int64) for r in records]) + 1 for side in (0, 1))
        return src, tgt

    def tokens(self) -> NDArray[np.int64]:
        """Return the source + target tokens of each part, including EOS."""
        rows = self.table
        tokens = (rows["source_tokens"] + rows["target_tokens"]).astype(np.int64) + 2 * rows["pairs"].astype(np.int64)
        return np.bincount(self.part_of_chunk, tokens, len(self.parts)).astype(np.int64)

    @cached_property
    def _statistics(self) -> list[dict[str, Any]]:
        names = [part_name(part, ".json") for part in range(len(self.parts))]
        return [read_json(self.folder / name, DamagedStoreError, REMEDY) for name in names]

    def part_stats(self) -> list[FilterStats]:
        """Return the filter statistics of each corpus."""
        return [FilterStats(part["read"], part["kept"], Counter(part["dropped"])) for part in self._statistics]

    def length_histograms(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many sources, and how many targets, have a number of tokens (the index), including EOS."""
        src, tgt = (_histogram([part["lengths"][side] for part in self._statistics]) for side in (0, 1))
        return src, tgt

    def alphabets(self, at_least: int) -> tuple[str, str]:
        """Return the characters that occur at least `at_least` times in the sources, and in the targets, sorted."""
        counts = (_histogram([part["characters"][side] for part in self._statistics]) for side in (0, 1))
        src, tgt = ("".join(map(chr, np.flatnonzero(found >= at_least))) for found in counts)
        return src, tgt


def _histogram(parts: Sequence[Mapping[str, int]]) -> NDArray[np.int64]:
    """Return the sums of counts as an array; the index is the value that was counted."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update({int(value): count for value, count in part.items()})
    counts = np.zeros(max(total, default=0) + 1, np.int64)
    counts[list(total)] = list(total.values())
    return counts
