"""Text files inside zip archives, addressed like files in a folder: `corpus.zip/corpus.en-fr.en`.

Members are decompressed as streams and never extracted, so neither their size nor their names can do harm.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from dragoman.errors import DataError

_ENCRYPTED = 1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_AGAIN = "Copy or download the archive again"


def archive_of(path: Path) -> Path | None:
    """Return the archive of a member, such as `a.zip` for `a.zip/b/c.en`; None if `path` is not inside an archive."""
    return next((parent for parent in path.parents if parent.suffix.casefold() == ".zip" and parent.is_file()), None)


def member_names(archive: Path) -> list[str]:
    """Return the names of the files in an archive.  Raises DataError if it cannot be read."""
    with _opened(archive) as opened:
        return [info.filename for info in opened.infolist() if not info.is_dir()]


def open_member(archive: Path, path: Path) -> zipfile.ZipExtFile:
    """Open the member `path` of an archive.

    Raises DataError if it is encrypted, missing, or compressed by an unknown method; reading raises BadZipFile,
    zlib.error, EOFError or OSError if the archive is damaged.
    """
    with _opened(archive) as opened:  # the member remains readable
        info = next((info for info in opened.infolist() if archive / info.filename == path), None)
        if info is None:
            raise DataError(f"{path}: {archive} contains no such file. {_AGAIN}.")
        if info.flag_bits & _ENCRYPTED:
            raise DataError(
                f"{path}: is encrypted; accepted: archives without a password. Extract it with the password."
            )
        if info.compress_type not in _METHODS:
            raise DataError(
                f"{path}: is compressed by the method {info.compress_type}; accepted: deflate, bzip2, LZMA or none. "
                "Extract the archive."
            )
        member = opened.open(info)
        assert isinstance(member, zipfile.ZipExtFile)
        return member


def _opened(archive: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(archive)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise DataError(f"{archive}: not a complete zip archive ({error}). {_AGAIN}.") from None
    except OSError as error:
        raise DataError(f"{archive}: cannot be read: {error.strerror or error}. Give a readable archive.") from None
