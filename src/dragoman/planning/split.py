"""Training, validation and test files of a parallel text, without near-duplicates of the training part."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dragoman.config import FilterConfig
from dragoman.data.corpus import CorpusSpec, PairFilter, SentencePair, read_pairs
from dragoman.data.held_out import TEST, TRAIN, VALID, choose_held_out, held_out_size, letters_hash, linked_groups
from dragoman.errors import DataError

__all__ = ["NAMES", "Split", "split_text"]

NAMES = {TRAIN: "train", VALID: "valid", TEST: "test"}

_LEAST_PAIRS = 100
_SAMPLE = 20_000

Files = tuple[Path, Path]


@dataclass
class Split:
    """What was written.

    counts: pairs by part.  account: statistics of the filter.  seen: pairs left out because a given validation or test
    set has a near-duplicate.  sample: training pairs at equal distances.
    """

    counts: dict[int, int]
    account: str
    seen: int
    sample: list[tuple[str, str]] = field(default_factory=list)


def split_text(
    spec: CorpusSpec, given: dict[int, Files], folder: Path, languages: tuple[str, str], seed: int = 1
) -> Split:
    """Write `train`, `valid` and `test` files with the languages as suffixes into a folder.

    given: validation or test files of the user, which are copied; parts that are not given are drawn from the text.
    Raises DataError if fewer than 100 pairs pass the filter.
    """
    fixed = {part: _pairs(files) for part, files in given.items()}
    held = [{letters_hash(pair[side]) for pairs in fixed.values() for pair in pairs} for side in (0, 1)]
    hashes = array("Q"), array("Q")
    seen = array("B")
    kept = PairFilter(FilterConfig())
    for pair in kept(read_pairs(spec)):
        keys = letters_hash(pair.source), letters_hash(pair.target)
        for values, key in zip(hashes, keys, strict=True):
            values.append(key)
        seen.append(keys[0] in held[0] or keys[1] in held[1])
    kept.stats.check()
    free = np.frombuffer(seen, dtype=np.uint8) == 0 if seen else np.zeros(0, dtype=bool)
    if int(free.sum()) < _LEAST_PAIRS:
        raise DataError(
            f"{spec.name}: {int(free.sum()):,} pairs are left ({kept.stats}); at least {_LEAST_PAIRS} are needed, and "
            "10,000 or more for useful translations"
        )
    sides = [np.frombuffer(values, dtype=np.uint64)[free] for values in hashes]
    size = held_out_size(len(sides[0]))
    wanted = [(part, size) for part in (VALID, TEST) if part not in fixed]
    parts = choose_held_out(linked_groups(*sides), wanted, seed)
    return _write(spec, free, parts, fixed, folder, languages, str(kept.stats))


def _pairs(files: Files) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(CorpusSpec(*files))]


def _write(
    spec: CorpusSpec,
    free: np.ndarray[tuple[int], np.dtype[np.bool_]],
    parts: np.ndarray[tuple[int], np.dtype[np.uint8]],
    fixed: dict[int, list[tuple[str, str]]],
    folder: Path,
    languages: tuple[str, str],
    account: str,
) -> Split:
    split = Split(dict.fromkeys(NAMES, 0), account, int((~free).sum()))
    step = max(1, int((parts == TRAIN).sum()) // _SAMPLE)
    with ExitStack() as stack:
        files = {
            part: [
                stack.enter_context((folder / f"{name}.{language}").open("w", encoding="utf-8", newline="\n"))
                for language in languages
            ]
            for part, name in NAMES.items()
        }
        drawn = ((part, (pair.source, pair.target)) for part, pair in _free_pairs(spec, free, parts))
        copied = ((part, pair) for part, pairs in fixed.items() for pair in pairs)
        for source in (drawn, copied):
            for part, pair in source:
                if part == TRAIN and split.counts[TRAIN] % step == 0:
                    split.sample.append(pair)
                split.counts[part] += 1
                for file, text in zip(files[part], pair, strict=True):
                    file.write(text + "\n")
    return split


def _free_pairs(
    spec: CorpusSpec,
    free: np.ndarray[tuple[int], np.dtype[np.bool_]],
    parts: np.ndarray[tuple[int], np.dtype[np.uint8]],
) -> Iterator[tuple[int, SentencePair]]:
    """Yield the part and the pair of all pairs that pass the filter and are free."""
    of_part = iter(parts.tolist())
    for is_free, pair in zip(free.tolist(), PairFilter(FilterConfig())(read_pairs(spec)), strict=True):
        if is_free:
            yield next(of_part), pair
