"""Split of a parallel text into training, validation and test files without near-duplicates between them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dragoman.config import FilterConfig
from dragoman.data.corpus import CorpusSpec, PairFilter, SentencePair, read_pairs
from dragoman.data.held_out import (
    TEST,
    TRAIN,
    VALID,
    choose_held_out,
    held_out_size,
    letters_hash,
    linked_groups,
    mostly_large,
)
from dragoman.errors import DataError

NAMES = {TRAIN: "train", VALID: "valid", TEST: "test"}

_LEAST_PAIRS = 100
_SAMPLE = 20_000

Files = tuple[Path, Path]


@dataclass
class Split:
    """Statistics and a sample of the written files.

    counts: pairs per part.  account: statistics of the filter.  seen: pairs left out because a given validation or test
    set contains a near-duplicate.  digits: whether sentences that differ only in digits count as different.  sample:
    training pairs at regular intervals.
    """

    counts: dict[int, int]
    account: str
    seen: int
    digits: bool = False
    sample: list[tuple[str, str]] = field(default_factory=list)


def split_text(
    spec: CorpusSpec, given: dict[int, Files], folder: Path, languages: tuple[str, str], seed: int = 1
) -> Split:
    """Write `train`, `valid` and `test` files with the languages as suffixes into a folder.

    given: validation or test files of the user, which are copied; the other parts are drawn from the text.
    Raises DataError if fewer than 100 pairs pass the filter.
    """
    fixed = {part: _pairs(files) for part, files in given.items()}
    kept, hashes = _hashes(spec, digits=False)
    groups = linked_groups(*hashes)
    if digits := mostly_large(groups):
        _, hashes = _hashes(spec, digits=True)
        groups = linked_groups(*hashes)
    free = np.ones(len(groups), dtype=bool)
    for side, values in enumerate(hashes):
        held = {letters_hash(pair[side], digits) for pairs in fixed.values() for pair in pairs}
        free &= ~np.isin(values, np.array(sorted(held), dtype=np.uint64))
    count = int(free.sum())
    if count < _LEAST_PAIRS:
        raise DataError(
            f"{spec.name}: {count:,} pairs are left ({kept}); at least {_LEAST_PAIRS} are needed, and 10,000 or more "
            "for useful translations"
        )
    wanted = [(part, held_out_size(count)) for part in (VALID, TEST) if part not in fixed]
    parts = choose_held_out(groups[free], wanted, seed)
    split = Split(dict.fromkeys(NAMES, 0), kept, len(free) - count, digits)
    step = max(1, int((parts == TRAIN).sum()) // _SAMPLE)
    _write(split, _free_pairs(spec, free, parts), fixed, folder, languages, step)
    return split


def _hashes(spec: CorpusSpec, digits: bool) -> tuple[str, list[np.ndarray[tuple[int], np.dtype[np.uint64]]]]:
    """Return the statistics of the filter, and the hashes of both sides of the pairs that pass it."""
    hashes = array("Q"), array("Q")
    kept = PairFilter(FilterConfig())
    for pair in kept(read_pairs(spec)):
        for values, text in zip(hashes, (pair.source, pair.target), strict=True):
            values.append(letters_hash(text, digits))
    kept.stats.check()
    return str(kept.stats), [np.array(values, dtype=np.uint64) for values in hashes]


def _pairs(files: Files) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(CorpusSpec(*files))]


def _write(
    split: Split,
    pairs: Iterator[tuple[int, SentencePair]],
    fixed: dict[int, list[tuple[str, str]]],
    folder: Path,
    languages: tuple[str, str],
    step: int,
) -> None:
    """Write the pairs of all parts; add every `step`-th training pair to the sample."""
    with ExitStack() as stack:
        files = {
            part: [
                stack.enter_context((folder / f"{name}.{language}").open("w", encoding="utf-8", newline="\n"))
                for language in languages
            ]
            for part, name in NAMES.items()
        }
        drawn = ((part, (pair.source, pair.target)) for part, pair in pairs)
        copied = ((part, pair) for part, given in fixed.items() for pair in given)
        for source in (drawn, copied):
            for part, pair in source:
                if part == TRAIN and split.counts[TRAIN] % step == 0:
                    split.sample.append(pair)
                split.counts[part] += 1
                for file, text in zip(files[part], pair, strict=True):
                    file.write(text + "\n")


def _free_pairs(
    spec: CorpusSpec,
    free: np.ndarray[tuple[int], np.dtype[np.bool_]],
    parts: np.ndarray[tuple[int], np.dtype[np.uint8]],
) -> Iterator[tuple[int, SentencePair]]:
    """Yield all pairs that pass the filter and are free, each with its part."""
    of_part = iter(parts.tolist())
    for is_free, pair in zip(free.tolist(), PairFilter(FilterConfig())(read_pairs(spec)), strict=True):
        if is_free:
            yield next(of_part), pair
