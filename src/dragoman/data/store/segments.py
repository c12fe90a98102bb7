"""The tasks of preparation, each on one segment of a corpus: filter pairs, and encode those that are kept.

They run in any process that finds the folder of the store under the same path.  A segment is a fixed number of pairs
that were read one after another, so that the result does not depend on the number of processes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.config import FilterConfig
from dragoman.data.corpus import FilterStats, PairFilter, SentencePair, pair_hash
from dragoman.data.store.chunks import PAIRS, TABLE, Record, id_type, ids_record, record_hash, text_record
from dragoman.tokenizers import Tokenizer, TokenizerFiles

SEGMENT = PAIRS * 128
"""Pairs read per segment."""

Histogram = dict[int, int]
"""Value -> its number of occurrences."""


@dataclass(frozen=True)
class FilterTask:
    """Pairs of a corpus to be filtered.  stem: path of the files to write, without their suffixes."""

    stem: str
    pairs: Sequence[tuple[str, str]]
    rules: FilterConfig


@dataclass(frozen=True)
class FilteredSegment:
    """A segment before duplicates are removed: `<stem>.filtered`, and `<stem>.hashes` if they are to be removed."""

    stem: str
    stats: FilterStats


def filter_segment(task: FilterTask) -> FilteredSegment:
    """Write the pairs that pass the filter, apart from duplicates."""
    pair_filter = PairFilter(task.rules.model_copy(update={"drop_duplicates": False}))
    kept = [(p.source, p.target) for p in pair_filter(SentencePair(s, t, 0) for s, t in task.pairs)]
    if kept:
        Path(f"{task.stem}.filtered").write_bytes(bytes(text_record(kept)))
        if task.rules.drop_duplicates:
            hashes = np.fromiter((pair_hash(*pair) for pair in kept), np.uint64, len(kept))
            order = np.argsort(hashes, kind="stable")
            Path(f"{task.stem}.hashes").write_bytes(hashes[order].tobytes() + order.astype(np.uint32).tobytes())
    return FilteredSegment(task.stem, pair_filter.stats)


def read_filtered(stem: str, pairs: int) -> list[tuple[str, str]]:
    """Return the pairs of a filtered segment; pairs: their number."""
    if not pairs:
        return []
    return Record.parse(Path(f"{stem}.filtered").read_bytes(), pairs, np.dtype(np.uint8)).texts()


def sorted_hashes(stem: str, pairs: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Return the hashes of a filtered segment in ascending order, equal ones as in the text, and their positions."""
    content = Path(f"{stem}.hashes").read_bytes() if pairs else b""
    return np.frombuffer(content, np.uint64, pairs), np.frombuffer(content, np.uint32, pairs, offset=8 * pairs)


@dataclass(frozen=True)
class EncodeTask:
    """A filtered segment to be encoded.

    pairs: in the segment.  duplicates: positions of those to drop, in ascending order.  models: see `Tokenizer`.
    """

    stem: str
    pairs: int
    duplicates: NDArray[np.uint32]
    models: TokenizerFiles
    max_tokens: int


@dataclass
class EncodedSegment:
    """A complete segment: `<stem>.ids`, `<stem>.text` and, if there are hashes, `<stem>.hashes`, now without positions.

    table: its chunks (see TABLE; the number of the segment is 0).  dropped: pairs by reason.  lengths: in tokens with
    the end of sentence, of the sources and of the targets.  characters: code points.  files: name -> size and hash.
    """

    table: NDArray[np.void]
    dropped: Counter[str] = field(default_factory=Counter)
    lengths: tuple[Histogram, Histogram] = field(default_factory=lambda: ({}, {}))
    characters: tuple[Histogram, Histogram] = field(default_factory=lambda: ({}, {}))
    files: dict[str, dict[str, int | str]] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _tokenizer(models: TokenizerFiles) -> Tokenizer:
    return Tokenizer(*models)


def drop_reason(ids: tuple[Sequence[int], Sequence[int]], most: int) -> str:
    """Return why a pair of ids without EOS is dropped: more than `most` tokens, or none (all removed); else ""."""
    source, target = len(ids[0]), len(ids[1])
    if source > most or target > most:
        return "too_many_tokens"
    return "" if source and target else "empty"


def encode_segment(task: EncodeTask) -> EncodedSegment:
    """Write the ids and the text of the pairs that are neither duplicates nor too long; remove the filtered segment."""
    tokenizer = _tokenizer(task.models)
    texts = read_filtered(task.stem, task.pairs)
    is_duplicate = np.zeros(len(texts), bool)
    is_duplicate[task.duplicates] = True
    dropped = Counter(duplicate=len(task.duplicates)) if len(task.duplicates) else Counter()
    texts = [pair for pair, skip in zip(texts, is_duplicate.tolist(), strict=True) if not skip]
    kept: list[tuple[tuple[str, str], tuple[list[int], list[int]]]] = []
    for pair, ids in zip(texts, tokenizer.encode_pairs(texts), strict=True):
        if reason := drop_reason(ids, task.max_tokens - 1):
            dropped[reason] += 1
        else:
            kept.append((pair, ids))
    segment = _write_chunks(task.stem, kept, id_type(max(tokenizer.source_size, tokenizer.target_size)))
    segment.dropped.update(dropped)
    _finish_hashes(task, is_duplicate, segment)
    Path(f"{task.stem}.filtered").unlink(missing_ok=True)
    return segment


def _write_chunks(
    stem: str, kept: Sequence[tuple[tuple[str, str], tuple[list[int], list[int]]]], item: np.dtype[np.generic]
) -> EncodedSegment:
    """Write the records of pairs and return their table and statistics."""
    rows, contents = [], {"ids": [b""], "text": [b""]}
    begins = Counter[str]()
    lengths, characters = (Counter[int](), Counter[int]()), (Counter[int](), Counter[int]())
    for first in range(0, len(kept), PAIRS):
        some = kept[first : first + PAIRS]
        texts, ids = text_record([pair for pair, _ in some]), ids_record([ids for _, ids in some], item)
        row: list[int] = [0, len(some), *(int(side.sum(dtype=np.int64)) for side in ids.lengths)]
        for name, record in (("ids", ids), ("text", texts)):
            content = bytes(record)
            row += [begins[name], len(content), record_hash(content)]
            begins[name] += len(content)
            contents[name].append(content)
        rows.append(tuple(row))
        for side in (0, 1):
            _count(lengths[side], ids.lengths[side].astype(np.int64) + 1)
            code_points = texts.values[side].tobytes().decode().encode("utf-32-le", "surrogatepass")
            _count(characters[side], np.frombuffer(code_points, np.uint32))
    segment = EncodedSegment(np.array(rows, TABLE), lengths=lengths, characters=characters)
    for name, parts in contents.items():
        _write(Path(f"{stem}.{name}"), b"".join(parts), segment)
    return segment


def _count(counts: Counter[int], values: NDArray[np.generic]) -> None:
    distinct, times = np.unique(values, return_counts=True)
    counts.update(dict(zip(distinct.tolist(), times.tolist(), strict=True)))


def _finish_hashes(task: EncodeTask, is_duplicate: NDArray[np.bool_], segment: EncodedSegment) -> None:
    """Keep the hashes of the pairs that are no duplicates, in ascending order, for corpora that are added later."""
    path = Path(f"{task.stem}.hashes")
    if path.exists():
        hashes, positions = sorted_hashes(task.stem, task.pairs)
        _write(path, hashes[~is_duplicate[positions]].tobytes(), segment)


def _write(path: Path, content: bytes, segment: EncodedSegment) -> None:
    path.write_bytes(content)
    segment.files[path.name] = {"bytes": len(content), "blake2b": hashlib.blake2b(content).hexdigest()}
