"""Pairs of a corpus as they are in its files, damaged ones included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from dragoman.data.corpus import CorpusSpec
from dragoman.data.misalignment import misalignment
from dragoman.data.readers.tables import read_rows, spread
from dragoman.errors import DataError
from dragoman.io.lines import BOM, open_lines

_SAMPLE = 20_000


class RawPair(NamedTuple):
    """number, where: of the line, row or unit.  problem: of a row that has no two texts."""

    number: int
    where: str
    source: str
    target: str
    problem: str = ""


def raw_pairs(spec: CorpusSpec, log: Callable[[str], None] | None = None) -> Iterator[RawPair]:
    """Stream all pairs, with U+FFFD for invalid bytes.  Raises DataError for files that cannot be read or paired."""
    if spec.sides is not None:
        if problem := misalignment(*spec.sides):
            raise DataError(problem[1])
        for number, (source, target) in enumerate(zip(*map(open_lines, spec.sides), strict=True), start=1):
            yield RawPair(number, f"line {number:,}", _decoded(source, number), _decoded(target, number))
        return
    assert spec.path is not None
    for row in read_rows(spec.path, (spec.source_key, spec.target_key), lambda raw, n, _: _decoded(raw, n), log):
        where = row.where.removeprefix(f"{spec.path}, ")
        texts = row.texts or ("", "")
        yield RawPair(row.number, where, texts[0], texts[1], row.problem)


def _decoded(raw: bytes, number: int) -> str:
    return raw[len(BOM) if number == 1 and raw.startswith(BOM) else 0 :].decode("utf-8", "replace").removesuffix("\r")


def sample(spec: CorpusSpec) -> list[tuple[str, str]]:
    """Return 20,000 to 40,000 pairs of two texts, at equal distances; all of a smaller corpus."""
    pairs = ((p.source.strip(), p.target.strip()) for p in raw_pairs(spec) if not p.problem)
    return spread((pair for pair in pairs if all(pair)), _SAMPLE)
