"""Choice of the two columns of a table that contain the source and the target text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from dragoman.data.languages import SCRIPTS, language_code
from dragoman.data.readers.row import Key, Row
from dragoman.data.readers.tables import columns, read_rows
from dragoman.errors import DataError, clip

_SAMPLE = 1000


def text_keys(path: Path, log: Callable[[str], None]) -> tuple[Key, Key]:
    """Return the first two columns of text: most sampled values have letters, and most of these are distinct.

    Downloads of Tatoeba have sentence numbers, languages or author names in other columns.  Raises DataError if there
    are fewer.
    """
    keys = columns(path)
    rows = _sample(row for row in read_rows(path, keys) if row.texts) if len(keys) > 1 else []
    lettered: list[Key] = []
    varied: list[Key] = []
    for i, key in enumerate(keys):
        values = [row.texts[i] for row in rows if any(map(str.isalpha, row.texts[i]))]
        if 2 * len(values) > len(rows):
            (varied if 2 * len(set(values)) > len(values) else lettered).append(key)
    if len(varied) < 2:
        first = clip("\t".join(rows[0].texts), 60) if rows else clip(", ".join(map(_shown, keys)), 60)
        repeated = ", ".join(map(_shown, lettered))
        raise DataError(
            f"{path}: {len(varied)} column{'s' * (len(varied) != 1)} of text ({first!r}"
            f"{'; mostly repeated values in column ' * bool(repeated)}{repeated}); accepted: a source text and a "
            "target text per row, in two columns"
        )
    log(f"{path}: source text in column {_shown(varied[0])}, target text in column {_shown(varied[1])}")
    return varied[0], varied[1]


def _sample(rows: Iterable[Row]) -> list[Row]:
    """Return about `_SAMPLE` rows at equal distances, because many corpora are sorted."""
    kept: list[Row] = []
    step = 1
    for number, row in enumerate(rows):
        if number % step == 0:
            kept.append(row)
        if len(kept) == 2 * _SAMPLE:
            kept = kept[::2]
            step *= 2
    return kept


def _shown(key: Key) -> str:
    return str(key + 1) if isinstance(key, int) else key


def key_languages(keys: Iterable[Key]) -> list[str | None]:
    """Return the languages that keys name, such as `de` for `translation.de`; None for other keys."""
    codes = [language_code(key.rpartition(".")[2]) if isinstance(key, str) else None for key in keys]
    return [code if code in SCRIPTS else None for code in codes]
