"""The arguments of a search for the C++ library: the structures of csrc/search_types.h and csrc/shortlist.h."""

from __future__ import annotations

import ctypes
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.decoding.hypothesis import Ids
from dragoman.decoding.phrases import Phrases
from dragoman.decoding.shortlist import Shortlist


class Settings(ctypes.Structure):
    """The settings of a search, and its limits."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("beam", "nbest", "min_length", "no_repeat_ngram", "shrink_beam")],
        *[(name, ctypes.c_int32) for name in ("recombine", "bos", "eos", "pad", "rows", "threads")],
        *[(name, ctypes.c_double) for name in ("alpha", "beam_threshold")],
        *[(name, ctypes.c_int64) for name in ("source_tokens", "memory")],
    ]


class Usage(ctypes.Structure):
    """Peak resource use of a search in any of its threads.

    rows: hypotheses.  source_tokens: tokens of their sources, counted once per row.  bytes: key/value caches and
    shortlists.
    """

    _fields_ = [(name, ctypes.c_int64) for name in ("rows", "source_tokens", "bytes")]
    rows: int
    source_tokens: int
    bytes: int


class RaggedArray(ctypes.Structure):
    """The addresses of a `RaggedIds`."""

    _fields_ = [("ids", ctypes.c_void_p), ("offsets", ctypes.c_void_p)]


@dataclass(frozen=True)
class RaggedIds:
    """Rows of ids, concatenated: row i is ids[offsets[i] : offsets[i + 1]]; the last offset is the number of ids."""

    ids: array[int]
    offsets: array[int]

    def __post_init__(self) -> None:
        if not self.offsets or self.offsets[-1] != len(self.ids):
            raise ValueError(f"the last offset must be the number of ids, {len(self.ids)}")

    @classmethod
    def of(cls, rows: Sequence[Ids]) -> RaggedIds:
        ids = array("i")
        for row in rows:
            ids.fromlist(list(row))
        return cls(ids, array("q", itertools.accumulate(map(len, rows), initial=0)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> array[int]:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    @property
    def structure(self) -> RaggedArray:
        """The addresses of the arrays, which the caller keeps alive."""
        return RaggedArray(address(self.ids), address(self.offsets))


class ShortlistTable(ctypes.Structure):
    """The lists of a `Shortlist`, which the caller keeps alive."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("frequent", "starts", "ids")],
        *[(name, ctypes.c_int32) for name in ("frequent_count", "source_size", "id_count")],
    ]

    @classmethod
    def of(cls, shortlist: Shortlist) -> ShortlistTable:
        lists = shortlist.frequent, shortlist.starts, shortlist.ids
        return cls(*map(address, lists), len(shortlist.frequent), len(shortlist.starts) - 1, len(shortlist.ids))


class SearchRequest(ctypes.Structure):
    """The arguments of a search: `SearchRequest` of csrc/search_types.h."""

    arrays: tuple[Any, ...]
    """Keeps the arrays alive to which the fields point."""
    _fields_ = [
        ("settings", Settings),
        ("count", ctypes.c_int32),
        ("sources", RaggedArray),
        ("prefixes", RaggedArray),
        ("shortlists", RaggedArray),
        ("phrases", RaggedArray),
        ("phrase_counts", ctypes.c_void_p),
        ("bonuses", ctypes.c_void_p),
        ("inside", ctypes.c_void_p),
        ("limits", ctypes.c_void_p),
        ("attention", ctypes.c_void_p),
        ("usage", ctypes.c_void_p),
    ]

    def add_phrases(self, phrases: Sequence[Phrases | None]) -> None:
        """Set the phrases of each sentence."""
        ids = RaggedIds.of([row for each in phrases if each for row in each.ids])
        counts = array("q", itertools.accumulate((len(each.ids) if each else 0 for each in phrases), initial=0))
        bonuses = array("f", [(each.bonus or 0.0) if each else 0.0 for each in phrases])
        self.phrases = ids.structure
        self.phrase_counts, self.bonuses = address(counts), address(bonuses)
        tables = (ctypes.c_char_p * len(phrases))(*((each and each.inside) or None for each in phrases))
        self.inside = ctypes.addressof(tables)
        self.arrays += ids, counts, bonuses, tables


def address(values: array[Any]) -> int:
    """Return the address of an array, which the caller keeps alive."""
    return values.buffer_info()[0]
