"""Parallel text of the user as two plain text files, and its split into training, validation and test files.

Validation and test pairs have no near-duplicates among the training pairs.  Two sentences are near-duplicates if their
letters are equal; case, spaces, punctuation and digits are ignored.  Pairs that are linked by near-duplicates on either
side, directly or through other pairs, form a group, and a group is never split.  In a text whose sentences mostly
differ only in digits, digits are compared, too.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.advice.columns import key_languages, spread
from dragoman.advice.raw_pairs import sample, single_corpus
from dragoman.config import FilterConfig
from dragoman.data.corpus import CorpusSpec, PairFilter, SentencePair, read_pairs
from dragoman.data.languages import SCRIPTS, file_language
from dragoman.data.precheck import likely_language
from dragoman.data.readers.tables import TMX
from dragoman.data.words import letters
from dragoman.errors import DataError, UsageError
from dragoman.io.lines import open_lines, read_chunks
from dragoman.io.reading import COMPRESSED_SUFFIXES

TRAIN, VALID, TEST = 0, 1, 2
_MAX_GROUP = 12
_MOST, _SHARE = 2000, 0.05
Ints = NDArray[np.int64]
_SAMPLE = 1000
_PART = re.compile(r"[-_.]")
NAMES = {TRAIN: "train", VALID: "valid", TEST: "test"}
_LEAST_PAIRS = 100
_SPLIT_SAMPLE = 20_000
Files = tuple[Path, Path]


@dataclass(frozen=True)
class ParallelText:
    """Two text files with a sentence per line, and their languages.

    title: names the text in messages if the files are temporary.  origin: the corpus of the user.
    """

    source: Path
    target: Path
    languages: tuple[str, str]
    title: str = ""
    origin: CorpusSpec | None = None

    @property
    def spec(self) -> CorpusSpec:
        return CorpusSpec(self.source, self.target, title=self.title)

    def pairs(self) -> Iterator[SentencePair]:
        """Stream the pairs.  Raises DataError as `read_pairs` does."""
        return read_pairs(self.spec)


def open_text(
    source: Path, target: Path | None, languages: tuple[str, str] | None, scratch: Path, log: Callable[[str], None]
) -> ParallelText:
    """Return the text of two files; the pairs of a single file or folder, or of USFM, are written into `scratch` first.

    languages: of source and target; None: detected from the file names, the keys or the text.  Raises UsageError for
    files that do not exist, other formats and languages that cannot be detected, DataError for empty files.
    """
    check_text_files([path for path in (source, target) if path is not None])
    spec = single_corpus(source, languages, log) if target is None else CorpusSpec(source, target)
    if spec.sides is not None:
        return ParallelText(*spec.sides, languages or known_languages(spec), origin=spec)
    files = scratch / "source.txt", scratch / "target.txt"
    _write(read_pairs(spec, log), files)
    title = str(source) if spec.form == ".tsv" else f"pairs of {spec.name}"
    return ParallelText(*files, languages or known_languages(spec), title, spec)


def check_text_files(files: Sequence[Path], where: str = "") -> None:
    """Raise UsageError for files that do not exist or are the same, DataError for empty files; where: a prefix."""
    missing = [str(path) for path in files if not (path.is_file() or path.is_dir())]
    if missing:
        raise UsageError(f"{where}no such file: {', '.join(missing)}")
    if len(files) == 2 and files[0].samefile(files[1]):
        raise UsageError(f"{where}source and target are the same file, {files[0]}; specify the file of each language")
    empty = [str(path) for path in files if path.is_file() and next(read_chunks(path), b"") == b""]
    if empty:
        raise DataError(f"{where}empty file: {', '.join(empty)}; specify files that contain text")


def _write(pairs: Iterator[SentencePair], files: tuple[Path, Path]) -> None:
    with (
        files[0].open("w", encoding="utf-8", newline="\n") as one,
        files[1].open("w", encoding="utf-8", newline="\n") as other,
    ):
        for pair in pairs:
            one.write(f"{pair.source}\n")
            other.write(f"{pair.target}\n")


def detect_languages(spec: CorpusSpec) -> tuple[str | None, str | None]:
    """Return the languages of a corpus by the names of its files or keys, else by frequent words; None if unknown."""
    paths = spec.sides or spec.given
    if len(paths) == 2:
        found = [_named_language(path) for path in paths]
    else:
        found = key_languages((spec.source_key, spec.target_key))
        if spec.form == TMX and not isinstance(spec.source_key, int):
            found = [str(spec.source_key), str(spec.target_key)]
        elif None in found:
            found = list(_pair_in_name(paths[0]))
    if None in found:
        if spec.sides is not None:  # which may have different numbers of lines
            sides = [spread((raw.decode(errors="replace") for raw in open_lines(side)), _SAMPLE) for side in spec.sides]
        else:
            sides = [list(texts) for texts in zip(*sample(spec, _SAMPLE), strict=True)]
        found = [code or likely_language(texts) for code, texts in zip(found, sides or ([], []), strict=True)]
    return found[0], found[1]


def known_languages(spec: CorpusSpec) -> tuple[str, str]:
    """Detect the languages.  Raises UsageError if one is unknown."""
    one, other = detect_languages(spec)
    if one is None or other is None or one == other:
        files = " and ".join(map(str, spec.sides or spec.given))
        raise UsageError(
            f"the languages of {files} cannot be detected (found: {one or 'unknown'}, {other or 'unknown'}); specify "
            "them, source first, with --languages, for example --languages en fr"
        )
    return one, other


def _named_language(path: Path) -> str | None:
    """Return the language code at the end of a file name: `a.fr`, `a.fr.gz`, `a-fr.txt`, `a_fr.txt`."""
    if code := file_language(path):
        return code
    stem = path.name.removesuffix(path.suffix if path.suffix in COMPRESSED_SUFFIXES else "")
    last = _PART.split(Path(stem).stem)[-1].casefold()
    return last if last in SCRIPTS and last != stem.casefold() else None


def _pair_in_name(path: Path) -> tuple[str | None, str | None]:
    """Return two adjacent language codes in a file name such as `corpus.en-fr.tsv`; None if there are none."""
    parts = [part.casefold() for part in _PART.split(path.name)]
    for one, other in pairwise(parts):
        if one in SCRIPTS and other in SCRIPTS:
            return one, other
    return None, None


def letters_hash(text: str, digits: bool = False) -> int:
    """Return a 64-bit hash of the case-folded letters of a text; of the whole text if it has no letters.

    digits: whether to hash digits, too.
    """
    digest = hashlib.blake2b(letters(text, digits).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def linked_groups(sources: NDArray[np.uint64], targets: NDArray[np.uint64]) -> Ints:
    """Return for each pair the smallest index of a pair in its group; sources, targets: hashes of the two sides."""
    sides = []
    for hashes in (sources, targets):
        _, numbers = np.unique(hashes, return_inverse=True)
        sides.append((numbers, int(numbers.max(initial=-1)) + 1))
    groups = np.arange(len(sources), dtype=np.int64)
    while True:
        before = groups
        for numbers, count in sides:
            smallest = np.full(count, len(groups), dtype=np.int64)
            np.minimum.at(smallest, numbers, groups)
            groups = smallest[numbers]
        groups = groups[groups]  # pointer jumping: fewer rounds
        if np.array_equal(groups, before):
            return groups


def mostly_large(groups: Ints) -> bool:
    """Return whether most pairs are in groups that are too large for a held-out part."""
    _, sizes = np.unique(groups, return_counts=True)
    return 2 * int(sizes[sizes > _MAX_GROUP].sum()) > len(groups)


def held_out_size(pairs: int) -> int:
    """Return the number of validation pairs, and of test pairs: 2,000, but at most 5 % of all pairs."""
    return min(_MOST, int(_SHARE * pairs))


def choose_held_out(groups: Ints, wanted: Iterable[tuple[int, int]], seed: int = 1) -> NDArray[np.uint8]:
    """Return the part of each pair: TRAIN, or a part of `wanted`, which contains (part, number of pairs).

    Whole groups of at most 12 pairs are drawn, in an order that depends only on the seed and the number of groups.  A
    part gets fewer pairs than wanted only if there are not enough such groups.
    """
    parts = np.full(len(groups), TRAIN, dtype=np.uint8)
    names, numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    small = order[sizes[order] <= _MAX_GROUP]
    part_of_group = np.full(len(names), TRAIN, dtype=np.uint8)
    start = 0
    for part, count in wanted:
        totals = np.cumsum(sizes[small[start:]])
        taken = int(np.searchsorted(totals, count, side="right"))
        part_of_group[small[start : start + taken]] = part
        start += taken
    parts[:] = part_of_group[numbers]
    return parts


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
    sources = {part: read_pairs(CorpusSpec(*files)) for part, files in given.items()}
    fixed = {part: [(pair.source, pair.target) for pair in pairs] for part, pairs in sources.items()}
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
    step = max(1, int((parts == TRAIN).sum()) // _SPLIT_SAMPLE)
    read = zip(free.tolist(), PairFilter(FilterConfig())(read_pairs(spec)), strict=True)
    drawn = zip(parts.tolist(), (pair for is_free, pair in read if is_free), strict=True)
    _write_parts(split, drawn, fixed, folder, languages, step)
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


def _write_parts(
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
