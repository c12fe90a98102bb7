"""The two text files of an OPUS archive in Moses format: `NAME.en-fr.en` and `NAME.en-fr.fr` in one `.zip`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from dragoman.data.languages import SCRIPTS, language_code
from dragoman.data.readers.row import Key
from dragoman.errors import DataError, clip
from dragoman.io.zip_members import member_names


def moses_files(path: Path, keys: tuple[Key, Key]) -> tuple[Path, Path]:
    """Return the source and the target file in an archive, as paths that `open_lines` reads (see `io.zip_members`).

    keys: language codes; numbers: the languages in the name of the only pair.  Raises DataError if the archive cannot
    be read, or does not contain exactly one such pair.
    """
    texts: dict[str, dict[str, str]] = defaultdict(dict)
    for name in member_names(path):
        stem, dot, language = name.rpartition(".")
        if dot:
            texts[stem][language] = name
    found = [pair for stem, names in texts.items() if (pair := _pair(stem, names, keys))]
    if len(found) == 1:
        return path / found[0][0], path / found[0][1]
    wanted = " and ".join(repr(key) for key in keys if isinstance(key, str)) or "two languages"
    if found:
        shown = clip(", ".join(pair[0] for pair in found), 200)
        raise DataError(
            f"{path}: contains {len(found)} pairs of files in {wanted} ({shown}); accepted: one. Extract the archive, "
            "and specify each pair with source and target."
        )
    listed = clip(", ".join(name for names in texts.values() for name in names.values()), 200) or "none"
    raise DataError(
        f"{path}: contains no pair of files in {wanted} (files: {listed}); accepted: an archive of OPUS in Moses "
        "format, such as NAME.en-fr.en and NAME.en-fr.fr. Set source_key and target_key to their language codes, or "
        "extract the archive and specify source and target."
    )


def _pair(stem: str, names: Mapping[str, str], keys: tuple[Key, Key]) -> tuple[str, str] | None:
    """Return the names of both files of a stem, or None."""
    if not all(isinstance(key, str) for key in keys):
        ends = PurePosixPath(stem).suffix.removeprefix(".").split("-")
        if not (len(ends) == 2 and all(end in names for end in ends)):
            ends = [language for language in names if language_code(language) in SCRIPTS]
        keys = (ends[0], ends[1]) if len(ends) == 2 else ("", "")
    one, other = (_in_language(names, str(key)) for key in keys)
    return (one, other) if one and other and one != other else None


def _in_language(names: Mapping[str, str], language: str) -> str | None:
    if language in names:
        return names[language]
    same = [name for found, name in names.items() if language and language_code(found) == language_code(language)]
    return same[0] if len(same) == 1 else None
