"""Formats of one file or folder with both sides of a parallel corpus: the only map from suffixes to readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.data.readers.arrow_tables import arrow_columns, arrow_rows
from dragoman.data.readers.delimited import csv_columns, csv_rows, jsonl_columns, jsonl_rows, tsv_columns, tsv_rows
from dragoman.data.readers.row import Decode, Key, Row
from dragoman.data.readers.tmx import TmxCount, check_languages, tmx_languages, tmx_pairs
from dragoman.errors import UsageError
from dragoman.io.lines import decode_line
from dragoman.io.suffixes import COMPRESSED_SUFFIXES, plain_suffix

FOLDER, TMX, ZIP = "folder", ".tmx", ".zip"
ACCEPTED = (
    ".tsv, .csv, .jsonl or .tmx (.gz, .zst or .xz may follow), .parquet, .zip (OPUS in Moses format), or a folder of "
    ".parquet files or written by save_to_disk of Hugging Face datasets"
)
"""The formats, for messages."""
Log = Callable[[str], None]


class _Format(NamedTuple):
    """form: of a row, for messages.  columns: the keys of a file that may be those of text."""

    form: str
    rows: Callable[[Path, Sequence[Key], Decode], Iterator[Row]]
    columns: Callable[[Path], list[Key]]


_ARROW = _Format("row must hold two texts", lambda path, keys, _: arrow_rows(path, keys), arrow_columns)
_FORMATS = {
    ".tsv": _Format("line must hold two tab-separated texts", tsv_rows, tsv_columns),
    ".csv": _Format("record must hold two texts, separated by commas", csv_rows, csv_columns),
    ".jsonl": _Format("line must hold one JSON object or array with both texts", jsonl_rows, jsonl_columns),
    ".parquet": _ARROW,
    FOLDER: _ARROW,
}


def table_format(path: Path) -> str:
    """Return the suffix of a supported file in lower case, or FOLDER.  Raises UsageError for other files."""
    if path.is_dir():
        return FOLDER
    suffix = plain_suffix(path).casefold()
    is_compressed = path.suffix in COMPRESSED_SUFFIXES
    if (suffix in _FORMATS or suffix in (TMX, ZIP)) and not (is_compressed and suffix in (".parquet", ZIP)):
        return suffix
    raise UsageError(f"{path}: accepted: {ACCEPTED}; or source and target for two text files")


def by_language(form: str) -> bool:
    """Return whether the keys of a format are language codes."""
    return form in (TMX, ZIP)


def row_advice(form: str) -> str:
    """Return the final sentence of a message about invalid rows."""
    return f"Each {_FORMATS[form].form}: repair these {_FORMATS[form].form.split()[0]}s or choose other keys."


def columns(path: Path) -> list[Key]:
    """Return the keys of a table that may be those of text.  Raises DataError if its start cannot be read."""
    return _FORMATS[table_format(path)].columns(path)


def read_rows(path: Path, keys: Sequence[Key], decode: Decode = decode_line, log: Log | None = None) -> Iterator[Row]:
    """Yield the rows of a file or folder, with the texts at `keys`; () and a problem for a row that is invalid.

    keys: of a TMX two language codes, or numbers for its two languages.  decode: replaces the decoder of lines.  log:
    receives what was left out of a TMX.  Raises DataError for a file that cannot be read, UsageError for a TMX of more
    than two languages without codes.
    """
    form = table_format(path)
    if form == TMX:
        return _tmx_rows(path, keys, log)
    return _FORMATS[form].rows(path, keys, decode)


def _tmx_rows(path: Path, keys: Sequence[Key], log: Log | None) -> Iterator[Row]:
    one, other = keys if all(isinstance(key, str) for key in keys) else tmx_languages(path)
    languages, count, kept = (str(one), str(other)), TmxCount(), 0
    for kept, texts in enumerate(tmx_pairs(path, languages, count), start=1):
        yield Row(kept, f"{path}, pair {kept:,}", texts)
    if not kept:
        check_languages(path, count, languages)
    if log is not None:
        missing = f"without {' or '.join(languages)} {count.incomplete:,}"
        log(f"{path}: read {count.read:,} units = {kept:,} pairs + {missing}")
        if str(count):
            log(f"{path}: left out: {count}")
