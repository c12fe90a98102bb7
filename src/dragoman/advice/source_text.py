"""Parallel text of the user as two plain text files; other formats are converted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from dragoman.data.corpus import CorpusSpec, SentencePair, read_pairs
from dragoman.data.languages import SCRIPTS, file_language
from dragoman.data.precheck import likely_language
from dragoman.data.readers.tables import ACCEPTED, TMX, ZIP, key_languages, table_format, text_keys
from dragoman.data.readers.tmx import tmx_languages
from dragoman.errors import DataError, UsageError
from dragoman.io.lines import count_lines, read_chunks, read_lines
from dragoman.io.reading import plain_suffix

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
    """Return the text of two files; the pairs of a single file or folder are written into `scratch` first.

    languages: of source and target; None: detected from the file names, the keys or the text.  Raises UsageError for
    files that do not exist, other formats and languages that cannot be detected, DataError for empty files.
    """
    if target is None and source.is_dir():
        form = table_format(source)
    else:
        check_text_files([path for path in (source, target) if path is not None])
        form = "" if target is not None else _format(source)
    if target is not None:
        return ParallelText(source, target, languages or _languages(source, target, (source, target)))
    if form == ZIP:
        sides = CorpusSpec(path=source, source_key=languages[0] if languages else 0,
                           target_key=languages[1] if languages else 1).sides  # fmt: skip
        assert sides is not None
        return ParallelText(*sides, languages or _languages(*sides, sides))
    keys = (languages or tmx_languages(source)) if form == TMX else text_keys(source, log)
    spec = CorpusSpec(path=source, source_key=keys[0], target_key=keys[1])
    files = scratch / "source.txt", scratch / "target.txt"
    _write(read_pairs(spec, log), files)
    if languages is None:
        one, other = map(str, keys) if form == TMX else key_languages(keys)
        languages = (one, other) if one and other else _languages(*files, (source, source))
    return ParallelText(*files, languages, str(source) if form == ".tsv" else f"pairs of {source}")


def _format(source: Path) -> str:
    try:
        return table_format(source)
    except UsageError:
        raise UsageError(
            f"{source}: one file of the format {plain_suffix(source) or 'without a suffix'!r}; accepted: two text "
            f"files (SOURCE TARGET), or one {ACCEPTED}"
        ) from None


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


def _write(pairs: Iterator[SentencePair], files: tuple[Path, Path]) -> None:
    with (
        files[0].open("w", encoding="utf-8", newline="\n") as one,
        files[1].open("w", encoding="utf-8", newline="\n") as other,
    ):
        for pair in pairs:
            one.write(f"{pair.source}\n")
            other.write(f"{pair.target}\n")


def _languages(source: Path, target: Path, names: tuple[Path, Path]) -> tuple[str, str]:
    """Detect the languages by file names, else by frequent words.  Raises UsageError if one is unknown."""
    languages = [_named_language(name) if names[0] != names[1] else None for name in names]
    if None in languages and names[0] == names[1]:
        languages = list(_pair_in_name(names[0]))
    for i, path in enumerate((source, target)):
        if languages[i] is None:
            step = max(1, count_lines(path) // _SAMPLE)  # many corpora are sorted
            languages[i] = likely_language(list(islice(read_lines(path), 0, None, step)))
    if None in languages or languages[0] == languages[1]:
        files = " and ".join(dict.fromkeys(map(str, names)))
        shown = ", ".join(code or "unknown" for code in languages)
        raise UsageError(
            f"the languages of {files} cannot be detected (found: {shown}); specify them, source first, with "
            "--languages, for example --languages en fr"
        )
    return str(languages[0]), str(languages[1])


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
