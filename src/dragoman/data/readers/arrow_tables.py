"""Rows of Parquet files, and of folders of Parquet files or of a data set saved by Hugging Face `datasets`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman.data.readers.rows import Key, Row, named_columns, one_text
from dragoman.errors import DataError, clip, nearest
from dragoman.extras import extra_package
from dragoman.io.reading import read_json

_ROWS, _BUFFER = 1024, 1 << 20
_STATE, _PARTS = "state.json", "dataset_dict.json"
_AGAIN = "Copy or save the data again."
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_SPLIT = re.compile(r"(train|valid|dev|test)[a-z]*[-_.\d]")


def table_files(path: Path) -> list[Path]:
    """Return the files to read, in order: `path` itself, or the tables in the folder `path`.

    Raises DataError for a folder that contains no tables, or several parts of a data set.
    """
    if not path.is_dir():
        return [path]
    if (path / _PARTS).is_file():
        splits = read_json(path / _PARTS, DataError, _AGAIN).get("splits")
        raise _several(path, [str(name) for name in splits] if isinstance(splits, list) else [], "folder")
    if (path / _STATE).is_file():
        return _saved_files(path)
    tables = sorted(file for file in path.iterdir() if file.suffix == ".parquet" and file.name[0] not in "._")
    if not tables:
        hint = f"; it has .arrow files, but no {_STATE}" if next(path.glob("*.arrow"), None) else ""
        raise DataError(
            f"{path}: nothing to read in this folder{hint}; accepted: a folder with .parquet files, or one written by "
            "save_to_disk of Hugging Face datasets. Specify such a folder, or a file."
        )
    parts = {match[1]: file.name for file in tables if (match := _SPLIT.match(file.name))}
    if len(parts) > 1:
        raise _several(path, list(parts.values()), "file")
    return tables


def _several(path: Path, names: list[str], kind: str) -> DataError:
    shown = ", ".join(str(path / name) for name in names[:8]) or "one of its folders"
    return DataError(
        f"{path}: contains several parts of a data set; accepted: one part. Set path to a {kind} of one part: {shown}"
    )


def _saved_files(path: Path) -> list[Path]:
    listed = read_json(path / _STATE, DataError, _AGAIN).get("_data_files")
    names = [item.get("filename") for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    files = [path / name for name in names if isinstance(name, str) and name == Path(name).name]
    if not files or len(files) < len(names):
        raise DataError(f"{path / _STATE}: lists no data files; accepted: a folder written by save_to_disk. {_AGAIN}")
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{path}: data files listed in {_STATE} are missing: {clip(', '.join(missing), 300)}. {_AGAIN}")
    return files


def arrow_rows(path: Path, keys: Sequence[Key]) -> Iterator[Row]:
    """Yield the rows of a Parquet file or a folder; keys: names of columns, `a.b` in a struct.

    Holds one batch of rows in memory.  Raises DataError for files that are damaged or lack a column of text.
    """
    number = 0
    for file in table_files(path):
        first = number
        try:
            with _open(file) as (schema, batches):
                names = _checked(file, schema, keys)
                for batch in batches(names):
                    columns = [_values(_column(batch, name)) for name in names]
                    for values in zip(*columns, strict=True):
                        number += 1
                        yield _row(number, f"{file}, row {number - first:,}", values, names)
        except read_errors() as error:
            raise DataError(
                f"{file}: cannot be read after row {number - first:,}: the file is truncated or damaged "
                f"({clip(str(error), 200)}). {_AGAIN}"
            ) from None


def _row(number: int, where: str, values: Sequence[object], names: Sequence[str]) -> Row:
    try:
        for name, value in zip(names, values, strict=True):
            if isinstance(value, UnicodeDecodeError):
                byte = value.object[value.start]
                raise LookupError(f"the text at {name!r} is not valid UTF-8 (byte 0x{byte:02x} at {value.start:,})")
        return Row(number, where, tuple(map(one_text, values, names)))
    except LookupError as error:
        return Row(number, where, problem=str(error.args[0]))


@contextmanager
def _open(file: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the schema of a file, and a function from names of columns to an iterator of record batches."""
    if file.suffix == ".arrow":
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - len(_END_OF_STREAM)))
            if stream.read() != _END_OF_STREAM:
                raise OSError("the end of the stream is missing")
            stream.seek(0)
            reader = arrow("pyarrow.ipc").open_stream(stream)
            yield reader.schema, lambda _: map(_validated, reader)
    else:
        with arrow("pyarrow.parquet").ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as table:
            yield table.schema_arrow, lambda names: table.iter_batches(_ROWS, columns=list(dict.fromkeys(names)))


def _validated(batch: Any) -> Any:
    batch.validate(full=True)  # pyarrow would follow damaged offsets outside of its buffers
    return batch


def _column(batch: Any, name: str) -> Any:
    """Return a column of a record batch, or the field `a.b` of a struct."""
    if name in batch.schema.names:
        return batch.column(name)
    top = next(field for field in batch.schema.names if name.startswith(f"{field}."))
    column, rest = batch.column(top), name[len(top) + 1 :]
    while rest:
        fields = [field.name for field in column.type]
        part = rest if rest in fields else next(field for field in fields if rest.startswith(f"{field}."))
        column = arrow("pyarrow.compute").struct_field(column, [column.type.get_field_index(part)])  # null in a null
        rest = rest[len(part) + 1 :]
    return column


def _values(column: Any) -> list[object]:
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> object:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


def _checked(file: Path, schema: Any, keys: Sequence[Key]) -> list[str]:
    """Return the keys as names.  Raises DataError if one of them is not that of a column of text."""
    kinds = list(_leaves(schema))
    texts = [name for name, kind in kinds if is_text(kind)]
    problems = []
    for key in keys:
        types = [kind for name, kind in kinds if name == key]
        if not types:
            hint = nearest(key, texts) if isinstance(key, str) else ", because columns have names"
            problems.append(f"no column {key!r}{hint}")
        elif len(types) > 1:
            problems.append(f"{len(types)} columns are named {key!r}")
        elif not is_text(types[0]):
            problems.append(f"the column {key!r} is of type {clip(str(types[0]), 60)}, not of text")
    if problems:
        raise DataError(
            f"{file}: {'; '.join(problems)}; columns of text: {named_columns(texts)}. Set source_key and target_key to "
            "two of them."
        )
    return list(map(str, keys))


def _leaves(fields: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and types of all columns, with those of structs as `a.b`."""
    for field in fields:
        name = f"{prefix}{field.name}"
        if arrow().types.is_struct(field.type):
            yield from _leaves(field.type, f"{name}.")
        else:
            yield name, field.type


def arrow_columns(path: Path) -> list[Key]:
    """Return the names of the columns of text in the first file.  Raises DataError if it cannot be read."""
    file = table_files(path)[0]
    try:
        with _open(file) as (schema, _):
            return [name for name, kind in _leaves(schema) if is_text(kind)]
    except read_errors() as error:
        raise DataError(f"{file}: cannot be read as a table: {clip(str(error), 200)}. {_AGAIN}") from None


def arrow(name: str = "pyarrow") -> Any:
    """Import and return a module of pyarrow.  Raises UsageError if it is not installed."""
    return extra_package(name, "scale", "Parquet")


def read_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of pyarrow for files that are damaged or cannot be read."""
    return (arrow().ArrowException, OSError, UnicodeDecodeError)


def is_text(kind: Any) -> bool:
    """Return whether a type of pyarrow is that of text, possibly encoded as a dictionary."""
    types = arrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
