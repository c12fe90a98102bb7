"""Shards: the input files of a bulk translation, one sentence a line or one a row, read and written in order."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import zstandard

from dragoman.errors import DataError, UsageError, nearest
from dragoman.extras import extra_package
from dragoman.io.lines import plain_suffix, read_lines
from dragoman.io.reading import hash_file

__all__ = [
    "COLUMNS",
    "JOURNAL",
    "Contents",
    "Shard",
    "TableShard",
    "TextShard",
    "find_shards",
    "is_bulk",
    "same_but_for_case",
]

COLUMNS = ("translation", "score", "flags", "nbest")
"""What a table gets; `nbest` only where more than one is asked for."""

JOURNAL = "_dragoman"
"""Folder in the output folder, for the files of the job itself."""

_TABLE = ".parquet"
_SHOWN = 20
_NOT_LINES = (".csv", ".tsv", ".json", ".jsonl", ".arrow", ".bin")
_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": partial(gzip.compress, mtime=0),
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@dataclass(frozen=True)
class Contents:
    """What a shard holds: its size and sha256 as it lies on disk, and the number of its lines (or rows)."""

    bytes: int
    sha256: str
    lines: int


@dataclass(frozen=True)
class Shard:
    """One input file.  name: its path below the output folder.  Reading raises DataError."""

    name: str
    path: Path
    table: ClassVar[bool] = False

    def texts(self) -> Iterator[str]:
        """What is to be translated, in order."""
        raise NotImplementedError

    def write(self, payloads: Iterable[bytes], to: Path) -> None:
        """Write what the chunks came to, in their order, as the output file `to`."""
        raise NotImplementedError

    def sha256(self) -> str:
        """Of the file as it is now."""
        try:
            return hash_file(self.path, "sha256")
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror or error}") from None

    def contents(self) -> Contents:
        """Read the shard to its end.  Raises DataError where any line cannot be used."""
        lines = sum(1 for _ in self.texts())
        return Contents(self.path.stat().st_size, self.sha256(), lines)


@dataclass(frozen=True)
class TextShard(Shard):
    """Text, one sentence a line; `.gz`, `.xz` and `.zst` are read and written compressed."""

    def texts(self) -> Iterator[str]:
        return read_lines(self.path)

    def write(self, payloads: Iterable[bytes], to: Path) -> None:
        # Members of gzip, streams of xz and frames of zstandard may follow one another in a file.
        compress = _COMPRESS.get(self.path.suffix, bytes)
        with to.open("wb") as file:
            for payload in payloads:
                file.write(compress(payload))


@dataclass(frozen=True)
class TableShard(Shard):
    """Parquet: the text is `column`, null counts as empty; `added` (of `COLUMNS`) is what its output has besides."""

    column: str
    added: tuple[str, ...]
    table: ClassVar[bool] = True

    def texts(self) -> Iterator[str]:
        try:
            for batch in self._open().iter_batches(columns=[self.column]):
                yield from (text or "" for text in batch.column(0).to_pylist())
        except _unreadable() as error:
            raise DataError(f"{self.path}: cannot be read as Parquet: {error}. Write the file again.") from error

    def write(self, payloads: Iterable[bytes], to: Path) -> None:
        arrow, parquet = _arrow(), _arrow("pyarrow.parquet")
        source = self._open()
        schema = source.schema_arrow
        for name in self.added:
            schema = schema.append(arrow.field(name, _kind(name)))
        records = (json.loads(line) for payload in payloads for line in payload.split(b"\n")[:-1])
        with parquet.ParquetWriter(to, schema) as writer:
            for batch in source.iter_batches():
                some = list(itertools.islice(records, batch.num_rows))
                new = [arrow.array([record[name] for record in some], _kind(name)) for name in self.added]
                writer.write_batch(arrow.RecordBatch.from_arrays([*batch.columns, *new], schema=schema))

    def _open(self) -> Any:
        """The file, with the column in it.  Raises DataError with every reason why it cannot be used."""
        parquet = _arrow("pyarrow.parquet")
        try:
            file = parquet.ParquetFile(self.path)
        except _unreadable() as error:
            raise DataError(f"{self.path}: not a Parquet file ({error}). Copy or write the file again.") from error
        schema = file.schema_arrow
        problems = [
            f"it has a column {name!r} already, and that is where the result goes: rename it"
            for name in self.added
            if name in schema.names
        ]
        texts = [field.name for field in schema if _is_text(field.type)]
        if self.column not in texts:
            what = f"is of type {schema.field(self.column).type}" if self.column in schema.names else "is not in it"
            listed = ", ".join(texts) or "none"
            problems.append(f"column {self.column!r} {what}{nearest(self.column, texts)}; columns of text: {listed}")
        if problems:
            raise DataError(f"{self.path}: {'; '.join(problems)}")
        return file


def _arrow(name: str = "pyarrow") -> Any:
    return extra_package(name, "scale", "Parquet")


def _unreadable() -> tuple[type[Exception], ...]:
    return (_arrow().ArrowException, OSError, UnicodeDecodeError)


def _is_text(kind: Any) -> bool:
    types = _arrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _kind(name: str) -> Any:
    arrow = _arrow()
    kinds = {"translation": arrow.string(), "score": arrow.float64()}
    return kinds.get(name, arrow.list_(arrow.string()))


def is_bulk(inputs: Sequence[Path], output: Path | None) -> bool:
    """Whether these are shards: several files, a folder, a table, or anything that goes into a folder."""
    one_file = len(inputs) < 2 and not any(path.is_dir() or path.suffix == _TABLE for path in inputs)
    return not one_file or (output is not None and output.is_dir())


def find_shards(inputs: Sequence[Path], column: str | None, added: tuple[str, ...]) -> list[Shard]:
    """The shards of files and folders (searched to the bottom, but for names that begin with "." or "_"), by name.

    Raises UsageError with every problem at once.
    """
    paths: dict[str, Path] = {}
    problems: list[str] = []
    collisions: list[str] = []
    all_links: list[Path] = []
    for given in inputs:
        found, links = _files(given)
        all_links += links
        if not found and not links:
            problems.append(f"{given}: {'no file in this folder' if given.is_dir() else 'no such file or folder'}")
        collisions += [
            f"{path} and {paths[name]} would both be written to {name}: translate them into two folders"
            for name, path in found.items()
            if name in paths
        ]
        paths |= found
    collisions += _inside_one_another(paths)
    problems += _first(collisions, "files with the same output")
    problems += _first(list(map(_link_problem, all_links)), "links")
    for path in paths.values():
        if plain_suffix(path) in _NOT_LINES:
            problems.append(f"{path}: {plain_suffix(path)} is not one sentence a line; give lines of text, or Parquet")
        elif path.suffix == _TABLE and column is None:
            problems.append(f"{path}: a table has columns: name the one to translate with --column")
    if column is not None and all(path.suffix != _TABLE for path in paths.values()):
        problems.append(f"--column {column}: there is no Parquet file in the input that could have it")
    if problems:
        raise UsageError("\n".join(["this input cannot be translated:", *(f"  - {problem}" for problem in problems)]))
    return [
        TableShard(name, path, column or "", added) if path.suffix == _TABLE else TextShard(name, path)
        for name, path in sorted(paths.items())
    ]


def _first(problems: Sequence[str], what: str) -> list[str]:
    rest = [f"and {len(problems) - _SHOWN:,} more {what}"] if len(problems) > _SHOWN else []
    return [*problems[:_SHOWN], *rest]


def _inside_one_another(paths: Mapping[str, Path]) -> Iterator[str]:
    """Outputs that would have to be a file and a folder at once."""
    for name, path in paths.items():
        if name == JOURNAL:
            yield f"{path} would be written to {name}, which is the folder of the job's own files: rename it"
        for parent in map(str, PurePosixPath(name).parents):
            if parent in paths:
                yield (
                    f"{path} would be written to {name}, and {paths[parent]} to {parent}, which cannot be a file and a "
                    "folder: translate them into two folders"
                )


def same_but_for_case(shards: Sequence[Shard], output: Path) -> list[str]:
    """Shards whose outputs would be one file, where the output's file system takes `A` and `a` for the same name."""
    seen: dict[str, Shard] = {}
    problems = []
    for shard in shards:
        other = seen.setdefault(shard.name.casefold(), shard)
        if other is not shard:
            problems.append(
                f"{other.path} and {shard.path} would be written to the same file, because the file system of {output} "
                "ignores case: translate them into two folders"
            )
    return _first(problems, "files with the same output") if problems and _ignores_case(output) else []


def _ignores_case(folder: Path) -> bool:
    """Whether the file system takes `A` and `a` for the same name, as far as existing folders tell."""
    for path in (folder.resolve(), *folder.resolve().parents):
        other = path.with_name(path.name.swapcase()) if path.name else path
        if other != path and path.exists():
            return other.exists() and other.samefile(path)
    return False


def _files(given: Path) -> tuple[dict[str, Path], list[Path]]:
    """Files by name; and links that are no files: none is followed, it may lead round, or to the same text twice."""
    if given.is_file():
        return {given.name: given}, []
    files, links = {}, []
    for path in given.rglob("*"):
        name = path.relative_to(given)
        if any(part[0] in "._" for part in name.parts):
            continue
        if path.is_file():
            files[name.as_posix()] = path
        elif path.is_symlink():
            links.append(path)
    return files, sorted(links)


def _link_problem(path: Path) -> str:
    if path.is_dir():
        # As long as the link is there, so is this error: whoever wants the folder's text does both.
        return (
            f"{path}: a link to a folder, which is not followed: take the link away, and give that folder itself "
            "with --input where it is to be translated"
        )
    return f"{path}: a link that leads to no file: mend it, or take it away"
