"""Parallel text of the user as two plain text files; the formats are two text files, one TSV, and one TMX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from dragoman.data.corpus import CorpusSpec, SentencePair, read_pairs
from dragoman.data.doctor.precheck import likely_language
from dragoman.data.languages import SCRIPTS, file_language
from dragoman.data.readers.tmx import TmxCount, check_languages, tmx_languages, tmx_pairs
from dragoman.errors import DataError, UsageError, clip
from dragoman.io.lines import count_lines, decode_line, open_lines, plain_suffix, read_chunks, read_lines

__all__ = ["ParallelText", "check_text_files", "open_text"]

_SAMPLE = 1000
_PART = re.compile(r"[-_.]")


@dataclass(frozen=True)
class ParallelText:
    """Two text files with a sentence per line, and their languages.

    title: names the text in messages if the files are temporary.
    """

    source: Path
    target: Path
    languages: tuple[str, str]
    title: str = ""

    @property
    def spec(self) -> CorpusSpec:
        return CorpusSpec(self.source, self.target, title=self.title)

    def pairs(self) -> Iterator[SentencePair]:
        """Stream the pairs.  Raises DataError as `read_pairs` does."""
        return read_pairs(self.spec)


def open_text(
    source: Path,
    target: Path | None,
    languages: tuple[str, str] | None,
    scratch: Path,
    log: Callable[[str], None],
) -> ParallelText:
    """Return the text of two files; the pairs of a single `.tsv` or `.tmx` are written into `scratch` first.

    languages: of source and target; None: detected from the file names, the variants of a TMX or the text.  Raises
    UsageError for files that do not exist, other formats and languages that cannot be detected, DataError for empty
    files.
    """
    check_text_files([path for path in (source, target) if path is not None])
    if target is not None:
        return ParallelText(source, target, languages or _languages(source, target, (source, target)))
    suffix = plain_suffix(source).casefold()
    if suffix == ".tsv":
        pairs, title = _tsv_pairs(source, _text_columns(source, log)), str(source)
    elif suffix == ".tmx":
        languages = languages or tmx_languages(source)
        pairs, title = _logged_tmx(source, languages, log), f"pairs of {source}"
    else:
        raise UsageError(
            f"{source}: one file of the format {suffix or 'without a suffix'!r}; accepted: two text files (SOURCE "
            "TARGET), one .tsv with a pair per line, or one .tmx (.gz, .zst or .xz may follow)"
        )
    files = scratch / "source.txt", scratch / "target.txt"
    _write(pairs, files)
    return ParallelText(*files, languages or _languages(*files, (source, source)), title)


def check_text_files(files: Sequence[Path], where: str = "") -> None:
    """Raise UsageError for files that do not exist or are the same, DataError for empty files; where: a prefix."""
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise UsageError(f"{where}no such file: {', '.join(missing)}")
    if len(files) == 2 and files[0].samefile(files[1]):
        raise UsageError(f"{where}source and target are the same file, {files[0]}; specify the file of each language")
    empty = [str(path) for path in files if next(read_chunks(path), b"") == b""]
    if empty:
        raise DataError(f"{where}empty file: {', '.join(empty)}; specify files that contain text")


def _write(pairs: Iterator[tuple[str, str]], files: tuple[Path, Path]) -> None:
    with (
        files[0].open("w", encoding="utf-8", newline="\n") as one,
        files[1].open("w", encoding="utf-8", newline="\n") as other,
    ):
        for source, target in pairs:
            one.write(source.replace("\n", " ") + "\n")
            other.write(target.replace("\n", " ") + "\n")


def _logged_tmx(path: Path, languages: tuple[str, str], log: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    count = TmxCount()
    yield from tmx_pairs(path, languages, count)
    kept = count.read - count.incomplete
    log(f"{path}: read {count.read:,} units = {kept:,} pairs + without {' or '.join(languages)} {count.incomplete:,}")
    if str(count):
        log(f"{path}: left out: {count}")
    if not kept:
        check_languages(path, count, languages)


def _tsv_pairs(path: Path, columns: tuple[int, int]) -> Iterator[tuple[str, str]]:
    return ((pair.source, pair.target) for pair in read_pairs(CorpusSpec(path=path, source_key=columns[0],
                                                                         target_key=columns[1])))  # fmt: skip


def _text_columns(path: Path, log: Callable[[str], None]) -> tuple[int, int]:
    """Return the first two columns of text: most sampled values have letters, and most of these are distinct.

    Downloads of Tatoeba have sentence numbers, languages or author names in other columns.
    """
    step = max(1, count_lines(path) // _SAMPLE)  # many corpora are sorted
    lines = islice(enumerate(open_lines(path), 1), 0, None, step)
    rows = [decode_line(raw, number, str(path)).split("\t") for number, raw in lines]
    values: dict[int, list[str]] = {}
    for row in rows:
        for i, text in enumerate(row):
            if any(map(str.isalpha, text)):
                values.setdefault(i, []).append(text)
    lettered = sorted(i for i, texts in values.items() if 2 * len(texts) > len(rows))
    found = [i for i in lettered if 2 * len(set(values[i])) > len(values[i])]
    if len(found) < 2:
        first = clip("\t".join(rows[0]), 60) if rows else ""
        repeated = ", ".join(str(i + 1) for i in lettered if i not in found)
        raise DataError(
            f"{path}: {len(found)} column{'s' * (len(found) != 1)} of text ({first!r}"
            f"{'; mostly repeated values in column ' * bool(repeated)}{repeated}); accepted: a source text and a "
            "target text per line, separated by a tab"
        )
    log(f"{path}: source text in column {found[0] + 1}, target text in column {found[1] + 1}")
    return found[0], found[1]


def _languages(source: Path, target: Path, names: tuple[Path, Path]) -> tuple[str, str]:
    """Detect the languages by file names, else by frequent words.  Raises UsageError if one is unknown."""
    found = [_named_language(name) if names[0] != names[1] else None for name in names]
    if None in found and names[0] == names[1]:
        found = list(_pair_in_name(names[0]))
    for i, path in enumerate((source, target)):
        if found[i] is None:
            step = max(1, count_lines(path) // _SAMPLE)  # many corpora are sorted
            found[i] = likely_language(list(islice(read_lines(path), 0, None, step)))
    if None in found or found[0] == found[1]:
        files = " and ".join(dict.fromkeys(map(str, names)))
        shown = ", ".join(code or "unknown" for code in found)
        raise UsageError(
            f"the languages of {files} cannot be detected (found: {shown}); specify them, source first, with "
            "--languages, for example --languages en fr"
        )
    return str(found[0]), str(found[1])


def _named_language(path: Path) -> str | None:
    """Return the language code at the end of a file name: `a.fr`, `a.fr.gz`, `a-fr.txt`, `a_fr.txt`."""
    if code := file_language(path):
        return code
    stem = path.name.removesuffix(path.suffix if path.suffix in (".gz", ".zst", ".xz") else "")
    last = _PART.split(Path(stem).stem)[-1].casefold()
    return last if last in SCRIPTS and last != stem.casefold() else None


def _pair_in_name(path: Path) -> tuple[str | None, str | None]:
    """Return two adjacent language codes in a file name such as `corpus.en-fr.tsv`; None if there are none."""
    parts = [part.casefold() for part in _PART.split(path.name)]
    for one, other in pairwise(parts):
        if one in SCRIPTS and other in SCRIPTS:
            return one, other
    return None, None
