"""Parallel corpora: read as pairs, rejected if misaligned, filtered with statistics on every pair."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.config import Config, CorpusConfig, FilterConfig, resolve_path
from dragoman.data.alignment import misalignment
from dragoman.errors import DataError, UsageError, clip
from dragoman.io.lines import check_text_file, decode_line, has_lone_surrogate, open_lines, plain_suffix, read_lines

__all__ = [
    "CorpusSpec",
    "FilterStats",
    "PairFilter",
    "SentencePair",
    "corpus_spec",
    "pair_hash",
    "parse_row",
    "read_pairs",
]

REASONS = ("empty", "too_short", "too_long", "ratio", "identical", "duplicate", "too_many_tokens")

_MAX_PROBLEMS = 5
_RATIO_FROM = 20
_SUFFIXES = (".tsv", ".jsonl")


@dataclass(frozen=True)
class CorpusSpec:
    """A parallel corpus: two text files, or one `.tsv` or `.jsonl` file, optionally compressed (`.gz .zst .xz`).

    Keys are column numbers from 0 (TSV, or a JSON array per line) or names (JSONL; `a.b` addresses a nested object).
    title: replaces the paths in messages.  Raises UsageError if neither or both forms are given, or if the suffix of
    `path` is not supported.
    """

    source: Path | None = None
    target: Path | None = None
    path: Path | None = None
    source_key: str | int = 0
    target_key: str | int = 1
    weight: float = 1.0
    title: str = ""

    def __post_init__(self) -> None:
        if len(self.files) != (2 if self.path is None else 1):
            raise UsageError(
                f"invalid corpus: source={self.source}, target={self.target}, path={self.path}; accepted: "
                "either source and target (two text files) or path (one .tsv or .jsonl file)"
            )
        for side in (self.source, self.target):
            if side is not None:
                check_text_file(
                    side,
                    "use two text files, or one .tsv file with two columns (in a configuration: path). Convert .csv "
                    "files to .tsv.",
                )
        if self.path is not None and plain_suffix(self.path) not in _SUFFIXES:
            raise UsageError(
                f"{self.path}: accepted: the suffix {' or '.join(_SUFFIXES)} (.gz, .zst or .xz may follow), or source "
                "and target for two text files"
            )

    @property
    def files(self) -> list[Path]:
        return [path for path in (self.source, self.target, self.path) if path is not None]

    @property
    def name(self) -> str:
        """The title, else the path or the two paths, for messages."""
        return self.title or " | ".join(map(str, self.files))


@dataclass(frozen=True)
class SentencePair:
    """A source text and its target text, with their line number from 1."""

    source: str
    target: str
    line: int


def _member(row: object, key: str | int) -> object:
    """Return the value at `key`.  Raises LookupError that describes the row."""
    if isinstance(key, int):
        if not isinstance(row, list):
            raise LookupError(f"no item {key}, because the line is not an array{_keys_of(row)}")
        if not 0 <= key < len(row):
            raise LookupError(f"no item {key}; the line has {len(row)} (counted from 0)")
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
    if has_lone_surrogate(value):
        raise LookupError(f"the text at {key!r} is invalid Unicode (lone surrogate)")
    return value


def parse_row(spec: CorpusSpec, text: str) -> tuple[str, str]:
    """Return source and target of one line of a `.tsv` or `.jsonl` file.  Raises ValueError describing the line."""
    assert spec.path is not None
    keys = (spec.source_key, spec.target_key)
    try:
        if plain_suffix(spec.path) == ".tsv":
            columns = text.split("\t")
            numbers = [key if isinstance(key, int) else -1 for key in keys]
            if not all(0 <= number < len(columns) for number in numbers):
                raise LookupError(
                    f'{len(columns)} column{"s" * (len(columns) > 1)} ("{clip(text, 60)}"); expected columns '
                    f"{keys[0]!r} and {keys[1]!r} (counted from 0, separated by tabs)"
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
    except ValueError as error:  # an integer with more digits than Python reads
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
        # After an invalid line the corpus will be rejected; the rest is read only to report more problems.
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
        raise DataError(f"{source} or {target} changed while being read. Retry when it is complete.") from error


def read_pairs(spec: CorpusSpec) -> Iterator[SentencePair]:
    """Stream the pairs of a corpus.

    Raises DataError: for misaligned files at once, with both line counts and the line where they diverge; during
    iteration for invalid bytes or rows, with file and line.
    """
    if spec.path is not None:
        return _read_rows(spec, spec.path)
    assert spec.source is not None and spec.target is not None
    problem = misalignment(spec.source, spec.target)
    if problem:
        raise DataError(problem[1])
    return _read_two(spec.source, spec.target)


@dataclass
class FilterStats:
    """Numbers of pairs read, kept and dropped by reason; always read = kept + dropped."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        reasons = [f" + {r} {self.dropped[r]:,}" for r in REASONS if self.dropped[r]]
        return f"read {self.read:,} = kept {self.kept:,}{''.join(reasons)}"

    def check(self) -> None:
        """Raise DataError if the numbers do not add up."""
        if self.read != self.kept + self.dropped.total():
            raise DataError(f"the filter statistics do not add up: {self}. Please report this error.")

    def drop_kept(self, reason: str) -> None:
        """Count a pair that was kept as dropped."""
        self.kept -= 1
        self.dropped[reason] += 1


def pair_hash(*texts: str) -> int:
    """Return a 64-bit BLAKE2b hash of the texts, which identifies them without holding a corpus in memory."""
    digest = hashlib.blake2b(digest_size=8)
    for text in texts:
        data = text.encode("utf-8", "replace")
        # The length prefix distinguishes ("ab", "c") from ("a", "bc").
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


class PairFilter:
    """Filter of pairs by length, length ratio, identity and duplication; `stats` counts the dropped ones.

    Duplicates are detected across all corpora that are read.
    """

    def __init__(self, rules: FilterConfig) -> None:
        self.rules = rules
        self.stats = FilterStats()
        self._seen: set[int] = set()

    def __call__(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        """Yield the pairs to keep, without surrounding whitespace."""
        for pair in pairs:
            stripped = SentencePair(pair.source.strip(), pair.target.strip(), pair.line)
            if self.judge(stripped) is None:
                yield stripped

    def judge(self, pair: SentencePair) -> str | None:
        """Count one stripped pair; return None if it is kept, else the reason for dropping it."""
        reason = self._reason(pair.source, pair.target)
        self.stats.read += 1
        if reason is None:
            self.stats.kept += 1
        else:
            self.stats.dropped[reason] += 1
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
    """Return a corpus of the configuration with resolved paths."""
    paths = {key: resolve_path(path, config.parallel.root) for key, path in corpus.paths().items()}
    return CorpusSpec(
        paths.get("source"),
        paths.get("target"),
        paths.get("path"),
        source_key=corpus.source_key,
        target_key=corpus.target_key,
        weight=corpus.weight,
    )
