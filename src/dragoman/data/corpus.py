"""Parallel corpora: read as pairs, refused when misaligned, filtered with an account of every pair."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from dragoman.config import Config, CorpusConfig, resolve_path
from dragoman.data.alignment import first_drift
from dragoman.errors import DataError, UsageError
from dragoman.io.lines import clip, count_lines, decode_line, has_half_pair, open_lines, plain_suffix, read_lines

__all__ = [
    "CorpusSpec",
    "FilterRules",
    "FilterStats",
    "PairFilter",
    "SentencePair",
    "corpus_spec",
    "count_lines",
    "first_drift",
    "misalignment",
    "open_lines",
    "pair_hash",
    "parse_row",
    "read_lines",
    "read_pairs",
]

REASONS = ("empty", "too_short", "too_long", "ratio", "identical", "duplicate", "too_many_tokens")

_MAX_PROBLEMS = 5
_RATIO_FROM = 20
_SUFFIXES = (".tsv", ".jsonl")


@dataclass(frozen=True)
class CorpusSpec:
    """One parallel corpus: two plain text files, or one `.tsv` or `.jsonl` file; `.gz`, `.zst` or `.xz` may follow.

    Keys are column numbers from 0 (TSV, or a JSONL line that is an array) or key names (JSONL; `a.b` reaches inside).
    Raises UsageError where neither or both forms are given, or where the suffix of `path` is another.
    """

    source: Path | None = None
    target: Path | None = None
    path: Path | None = None
    source_key: str | int = 0
    target_key: str | int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        both = self.source is not None and self.target is not None
        neither = self.source is None and self.target is None
        if not (both and self.path is None) and not (neither and self.path is not None):
            raise UsageError(
                f"a corpus is given by source={self.source}, target={self.target}, path={self.path}: "
                "give either source and target (two text files) or path (one .tsv or .jsonl file)."
            )
        if self.path is not None and plain_suffix(self.path) not in _SUFFIXES:
            raise UsageError(
                f"{self.path}: a corpus in one file ends in {' or '.join(_SUFFIXES)} (.gz, .zst or .xz may follow). "
                " Rename the file, or give source and target for two plain text files."
            )

    @property
    def name(self) -> str:
        """The file or the two files, for messages."""
        return str(self.path) if self.path is not None else f"{self.source} | {self.target}"


@dataclass(frozen=True)
class SentencePair:
    """A source text and its target text, and the line (from 1) they stand on."""

    source: str
    target: str
    line: int


def _line_at(path: Path, line: int) -> str:
    for raw in islice(open_lines(path), line - 1, line):
        return f'"{clip(raw.decode("utf-8", "replace"))}"'
    return "(the file has ended)"


def misalignment(source: Path, target: Path) -> tuple[int, str] | None:
    """The line near which two files lose each other and a message on it, or None where the counts agree.

    Raises DataError where a file cannot be read.
    """
    n_source, n_target = count_lines(source), count_lines(target)
    if n_source == n_target:
        return None
    line = first_drift(source, target) or 1
    return line, (
        f"{source} has {n_source:,} lines but {target} has {n_target:,}: line n of one must translate line n of the "
        f"other. They first drift apart near line {line:,}:\n"
        f"  source: {_line_at(source, line)}\n"
        f"  target: {_line_at(target, line)}\n"
        "Put back the missing line, or take out the extra one, near that place; never filter one side alone."
    )


def _member(row: object, key: str | int) -> object:
    """The value at `key`; raises LookupError with a text that says what there is instead."""
    if isinstance(key, int):
        if not isinstance(row, list):
            raise LookupError(f"item {key} is asked for, but the line is not an array{_keys_of(row)}")
        if not 0 <= key < len(row):
            raise LookupError(f"item {key} is asked for, but the line has {len(row)} (counted from 0)")
        return row[key]
    if isinstance(row, dict) and key in row:
        return row[key]
    head, dot, rest = key.partition(".")
    if dot and isinstance(row, dict) and head in row:
        return _member(row[head], rest)
    raise LookupError(f"no key {key!r}{_keys_of(row)}")


def _keys_of(row: object) -> str:
    if isinstance(row, dict):
        return f" (its keys: {clip(', '.join(map(repr, row)))})"
    return f" (it is {clip(repr(row), 40)})"


def _json_text(row: object, key: str | int) -> str:
    value = _member(row, key)
    if not isinstance(value, str):
        raise LookupError(f"the value at {key!r} is {clip(repr(value), 40)}, not a string")
    if has_half_pair(value):
        raise LookupError(f"the text at {key!r} holds half a surrogate pair, which is no character")
    return value


def parse_row(spec: CorpusSpec, text: str) -> tuple[str, str]:
    """The source and target of one line of a `.tsv` or `.jsonl` file; raises ValueError saying what was found."""
    assert spec.path is not None
    keys = (spec.source_key, spec.target_key)
    try:
        if plain_suffix(spec.path) == ".tsv":
            columns = text.split("\t")
            numbers = [key if isinstance(key, int) else -1 for key in keys]
            if not all(0 <= number < len(columns) for number in numbers):
                raise LookupError(
                    f'{len(columns)} column{"s" * (len(columns) > 1)} ("{clip(text, 60)}"), but columns {keys[0]!r} '
                    f"and {keys[1]!r} (counted from 0, separated by tabs) are asked for"
                )
            return columns[numbers[0]], columns[numbers[1]]
        row = json.loads(text)
        return _json_text(row, keys[0]), _json_text(row, keys[1])
    except json.JSONDecodeError as error:
        raise ValueError(f'not JSON: {error.msg} at column {error.colno} ("{clip(text, 60)}")') from error
    except RecursionError as error:
        raise ValueError(f'not JSON: brackets nested too deeply ("{clip(text, 60)}")') from error
    except LookupError as error:
        raise ValueError(str(error.args[0])) from error
    except ValueError as error:  # an integer of more digits than Python reads
        raise ValueError(f'not JSON: an integer has too many digits ("{clip(text, 60)}")') from error


def _read_rows(spec: CorpusSpec, path: Path) -> Iterator[SentencePair]:
    problems: list[str] = []
    for line, raw in enumerate(open_lines(path), start=1):
        try:
            source, target = parse_row(spec, decode_line(raw, line, str(path)))
        except (ValueError, DataError) as error:
            if len(problems) == _MAX_PROBLEMS:
                problems.append("... and more")
                break
            problems.append(str(error) if isinstance(error, DataError) else f"{path}, line {line:,}: {error}")
            continue
        # Once a line is bad the corpus will be refused: the rest is read only to tell the other bad places.
        if not problems:
            yield SentencePair(source, target, line)
    if problems:
        form = "two tab-separated texts" if plain_suffix(path) == ".tsv" else "one JSON object or array with both texts"
        raise DataError("\n".join([*problems, f"Each line must hold {form}: repair these lines or choose other keys."]))


def _read_two(source: Path, target: Path) -> Iterator[SentencePair]:
    try:
        for line, (one, other) in enumerate(zip(read_lines(source), read_lines(target), strict=True), start=1):
            yield SentencePair(one, other, line)
    except ValueError as error:
        raise DataError(f"{source} or {target} changed while it was read. Start again when it is complete.") from error


def read_pairs(spec: CorpusSpec) -> Iterator[SentencePair]:
    """Stream the pairs of a corpus; misaligned files are refused by this call, before the first pair.

    Raises DataError naming both counts and the place of first drift, or the file and the line of bad bytes or bad rows.
    """
    if spec.path is not None:
        return _read_rows(spec, spec.path)
    assert spec.source is not None and spec.target is not None
    problem = misalignment(spec.source, spec.target)
    if problem:
        raise DataError(problem[1])
    return _read_two(spec.source, spec.target)


@dataclass(frozen=True)
class FilterRules:
    """What a pair must meet to be kept; lengths in characters, `max_ratio` the longer side over the shorter."""

    min_characters: int = 1
    max_characters: int = 5000
    max_ratio: float = 9.0
    drop_identical: bool = True
    drop_duplicates: bool = True


@dataclass
class FilterStats:
    """How many pairs were read, kept, and dropped by reason; read = kept + dropped at any moment."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        reasons = [f" + {r} {self.dropped[r]:,}" for r in REASONS if self.dropped[r]]
        return f"read {self.read:,} = kept {self.kept:,}{''.join(reasons)}"

    def check(self) -> None:
        """Raise DataError where a pair is unaccounted for."""
        if self.read != self.kept + self.dropped.total():
            raise DataError(f"the account of the pairs does not add up: {self}. Please report this error.")


def pair_hash(*texts: str) -> int:
    """64 bits that stand for the texts (BLAKE2b), so that a corpus is compared without being held in memory."""
    digest = hashlib.blake2b(digest_size=8)
    for text in texts:
        data = text.encode("utf-8", "replace")
        # The length in front keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


class PairFilter:
    """Drop pairs, never one side, and account for each; duplicates are known across all corpora it is given."""

    def __init__(self, rules: FilterRules) -> None:
        self.rules = rules
        self.account = FilterStats()
        self._seen: set[int] = set()

    def __call__(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        """Yield the pairs that are kept, without the whitespace around either text."""
        for pair in pairs:
            stripped = SentencePair(pair.source.strip(), pair.target.strip(), pair.line)
            if self.judge(stripped) is None:
                yield stripped

    def judge(self, pair: SentencePair) -> str | None:
        """Enter one pair, without whitespace around it, into the account: None where it is kept, else the reason."""
        reason = self._reason(pair.source, pair.target)
        self.account.read += 1
        if reason is None:
            self.account.kept += 1
        else:
            self.account.dropped[reason] += 1
        return reason

    def _reason(self, source: str, target: str) -> str | None:
        rules = self.rules
        shorter, longer = sorted((len(source), len(target)))
        if shorter == 0:
            return "empty"
        if shorter < rules.min_characters:
            return "too_short"
        if longer > rules.max_characters:
            return "too_long"
        if longer > _RATIO_FROM and longer / shorter > rules.max_ratio:
            return "ratio"
        if rules.drop_identical and source == target:
            return "identical"
        if rules.drop_duplicates:
            key = pair_hash(source, target)
            if key in self._seen:
                return "duplicate"
            self._seen.add(key)
        return None


def corpus_spec(config: Config, corpus: CorpusConfig) -> CorpusSpec:
    """A corpus of the configuration with its paths resolved."""

    def path(text: str | None) -> Path | None:
        return None if text is None else resolve_path(text, config.parallel.root)

    return CorpusSpec(
        path(corpus.source), path(corpus.target), path(corpus.path), corpus.source_key, corpus.target_key, corpus.weight
    )
