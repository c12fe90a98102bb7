"""A parallel text in every format that a configuration accepts as `path`: written and read."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from dragoman.data.corpus import CorpusSpec, read_pairs
from dragoman.errors import DataError

Pairs = Sequence[tuple[str, str]]


def pairs_of(path: Path, **keys: Any) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(CorpusSpec(path=path, **keys))]


def refusal(path: Path, **keys: Any) -> str:
    """Return the message of the error that reading raises."""
    with pytest.raises(DataError) as raised:
        pairs_of(path, **keys)
    return str(raised.value)


def write_csv(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    """Write records, compressed if the name ends with `.gz`."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_tmx(path: Path, pairs: Pairs, languages: tuple[str, str] = ("en", "de"), more: str = "") -> Path:
    """Write a unit per pair, then the units `more`."""
    one, other = languages
    units = "".join(
        f'<tu><tuv xml:lang="{one}"><seg>{escape(source)}</seg></tuv>'
        f'<tuv xml:lang="{other}"><seg>{escape(target)}</seg></tuv></tu>'
        for source, target in pairs
    )
    header = f'<tmx version="1.4"><header srclang="{languages[0]}"/>'
    path.write_text(f"{header}<body>{units}{more}</body></tmx>", encoding="utf-8")
    return path


def nested(pairs: Pairs) -> arrow.Table:
    """Return a table with the struct `translation` of Hugging Face data sets, and a column of numbers."""
    texts = [{"en": source, "de": target} for source, target in pairs]
    kind = arrow.struct([("en", arrow.string()), ("de", arrow.string())])
    return arrow.table({"id": list(range(len(pairs))), "translation": arrow.array(texts, kind)})


def write_saved(folder: Path, tables: Sequence[arrow.Table]) -> Path:
    """Write a folder as `save_to_disk` of Hugging Face `datasets` does, with one file per table."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{len(tables):05}.arrow" for i in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with arrow.OSFile(str(folder / name), "wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return folder


def write_zip(path: Path, members: dict[str, str], **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def moses_members(pairs: Pairs) -> dict[str, str]:
    """Return the files of an OPUS archive by name."""
    sides = ["".join(f"{text}\n" for text in side) for side in zip(*pairs, strict=True)]
    return {"README": "OPUS\n", "LICENSE": "free\n", "A.de-en.de": sides[1], "A.de-en.en": sides[0], "A.de-en.ids": ""}


def _parquet(path: Path, table: arrow.Table) -> Path:
    parquet.write_table(table, path, row_group_size=10)
    return path


def _parquet_folder(folder: Path, pairs: Pairs) -> Path:
    folder.mkdir()
    for i in range(3):
        third = -(-len(pairs) // 3)
        _parquet(folder / f"train-{i:05}.parquet", nested(pairs[i * third : (i + 1) * third]))
    (folder / "README.md").write_text("no table")
    return folder


def _saved(folder: Path, pairs: Pairs) -> Path:
    return write_saved(folder, [nested(pairs[:5]), nested(pairs[5:])])


HEADED = ("id", "english", "de")
FORMATS: dict[str, tuple[Callable[[Path, Pairs], Path], dict[str, Any]]] = {
    "a.csv": (lambda path, pairs: write_csv(path, pairs), {}),
    "headed.csv.gz": (
        lambda path, pairs: write_csv(path, [HEADED, *((str(i), *pair) for i, pair in enumerate(pairs))]),
        {"source_key": "english", "target_key": "de"},
    ),
    "a.tmx": (lambda path, pairs: write_tmx(path, pairs), {"source_key": "en", "target_key": "de"}),
    "a.parquet": (
        lambda path, pairs: _parquet(path, nested(pairs)),
        {"source_key": "translation.en", "target_key": "translation.de"},
    ),
    "parquet": (_parquet_folder, {"source_key": "translation.en", "target_key": "translation.de"}),
    "saved": (_saved, {"source_key": "translation.en", "target_key": "translation.de"}),
    "a.zip": (
        lambda path, pairs: write_zip(path, moses_members(pairs)),
        {"source_key": "en", "target_key": "de"},
    ),
}
"""Name -> writer, and the keys of the texts (source en, target de)."""
