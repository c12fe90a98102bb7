"""Folders of prepared data, named by a hash of what they are made from: corpora, filter and tokenizer.

`store.json` describes all files, and the folder is built once, by one of the processes that need it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from dragoman.config import Config
from dragoman.data.corpus import CorpusSpec
from dragoman.errors import DataError, DragomanError, TrainingError
from dragoman.io.reading import RandomAccessFile, hash_file, read_json
from dragoman.io.run_log import Reporter
from dragoman.io.writing import atomic_folder, not_written, write_file
from dragoman.tokenizers import Tokenizer

ABOUT = "store.json"
REMEDY = "Remove the folder; the next training run rebuilds it."
VERIFIED = 256 << 20
"""Bytes up to which all files are verified when a folder is opened; larger ones, in pieces when they are read."""
_MARK = "damaged"
_POLL = 0.5  # seconds
_Prepared = TypeVar("_Prepared")


class DamagedStoreError(DataError):
    """Prepared data that differ from what was written; the message lists the folder and all damaged files."""


def describe(path: Path) -> dict[str, Any]:
    """Return the size and the BLAKE2b hash of a file.  Raises OSError."""
    file = RandomAccessFile(path)
    return {"bytes": len(file), "blake2b": file.digest()}


def _digest(about: Mapping[str, Any]) -> str:
    text = json.dumps({key: value for key, value in about.items() if key != "digest"}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def write_about(folder: Path, about: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> None:
    """Write `store.json` with the sizes and hashes of all other files.  known: those that need not be computed."""
    names = sorted(path.name for path in folder.iterdir() if path.name != ABOUT)
    about = {**about, "files": {name: known.get(name) or describe(folder / name) for name in names}}
    (folder / ABOUT).write_text(json.dumps(about | {"digest": _digest(about)}, indent=1), encoding="utf-8")


def read_about(folder: Path, version: object) -> dict[str, Any]:
    """Return `store.json`.

    Raises DamagedStoreError if it is damaged or of another version, or if the folder is marked (see `damaged`).
    """
    about = read_json(folder / ABOUT, DamagedStoreError, REMEDY)
    if about.get("digest") != _digest(about) or about.get("version") != version:
        raise DamagedStoreError(f"{folder / ABOUT}: altered, or of another version. {REMEDY}")
    if (folder / _MARK).exists():
        raise DamagedStoreError(f"{folder}: a training run found damaged data. {REMEDY}")
    return about


def damaged(path: Path) -> DataError:
    """Return the error for a file with damaged content; mark its folder, so that the next run rebuilds it."""
    with suppress(OSError):
        (path.parent / _MARK).touch()
    return DataError(f"{path}: was changed or is damaged. Run the command again to rebuild it.")


def build_once(
    folder: Path,
    opened: Callable[[Path], _Prepared],
    write: Callable[[Path, ExitStack], None],
    reporter: Reporter,
) -> tuple[_Prepared, bool]:
    """Open the prepared data in a folder, or write them there; return them, and whether they existed.

    opened: opens a complete folder and raises DamagedStoreError if it is damaged.  write: writes the files into a
    temporary folder, and may enter contexts.  Raises TrainingError if the folder cannot be written.
    """
    found = _reused(folder, opened, reporter)
    if found is not None:
        return found, True
    try:
        with ExitStack() as stack:
            if stack.enter_context(_turn(folder, reporter)):
                found = _reused(folder, opened, reporter)
                if found is not None:
                    return found, True  # another process has built it meanwhile
            unfinished = stack.enter_context(atomic_folder(folder, is_valid=lambda path: _is_valid(path, opened)))
            write(unfinished, stack)
        return opened(folder), False
    except OSError as error:
        raise TrainingError(not_written(f"the prepared data ({folder})", error)) from error


def _reused(folder: Path, opened: Callable[[Path], _Prepared], reporter: Reporter) -> _Prepared | None:
    if not os.path.lexists(folder / ABOUT):
        return None
    try:
        return opened(folder)
    except DamagedStoreError as error:
        reporter.warn(f"prepared data is damaged and will be rebuilt: {error}")
        return None


def _is_valid(folder: Path, opened: Callable[[Path], object]) -> bool:
    try:
        opened(folder)
    except DamagedStoreError:
        return False
    return True


@contextmanager
def _turn(folder: Path, reporter: Reporter) -> Generator[bool, None, None]:
    """Wait until no other process builds this folder; yield whether it had to wait.

    The lock only avoids double work: two processes that build the same folder do not disturb each other.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock, waited = FileLock(folder.with_name(f".{folder.name}.lock"), fallback_to_soft=False), False
    try:
        while True:
            with suppress(Timeout):
                lock.acquire(timeout=_POLL)
                break
            if not waited:
                reporter.phase("waiting for another process that prepares the same data")
            waited = True
    except (OSError, NotImplementedError):  # a file system without locks
        pass
    try:
        yield waited
    finally:
        with suppress(OSError):
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


VERSION = 3
"""Of the format; stores of other versions are built again, under another name."""
_HASHES = "hashes.json"
LARGE = 64 << 20
"""Bytes from which the hash of a file is remembered together with its size, inode and time of modification."""
_SETTLED = 2_000_000_000
"""Nanoseconds after a modification before a hash is remembered: later writes then change the time."""


class FileHashes:
    """BLAKE2b hashes of files, remembered in a folder for large files."""

    def __init__(self, folder: Path | None) -> None:
        """folder: None to remember nothing."""
        self._file = None if folder is None else folder / _HASHES
        self._known: dict[str, Any] = {}
        if self._file is not None and self._file.is_file():
            with suppress(DataError):
                self._known = read_json(self._file, DataError, "")

    def of(self, path: Path) -> str:
        """Return the hexadecimal hash of a file.  Raises OSError."""
        state = path.stat()
        key, found = os.path.abspath(path), [state.st_size, state.st_mtime_ns, state.st_ino]  # noqa: PTH100
        known = self._known.get(key)
        if isinstance(known, list) and known[:3] == found and len(known) == 4 and isinstance(known[3], str):
            return known[3]
        digest = hash_file(path, "blake2b")
        if self._file is not None and state.st_size >= LARGE and time.time_ns() - state.st_mtime_ns > _SETTLED:
            self._known[key] = [*found, digest]
            with suppress(OSError, DragomanError):  # the hash is computed again
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_file(self._file, json.dumps(self._known, indent=1).encode())
        return digest


def text_hash(specs: Sequence[CorpusSpec], cache: Path | None = None) -> str:
    """Return a hash of the corpora as 16 hexadecimal digits: contents of the files, keys, weights.

    cache: folder in which the hashes of large files are remembered.  Raises DataError if a file cannot be read.
    """
    digest, hashes = hashlib.blake2b(digest_size=8), FileHashes(cache)
    for spec in specs:
        digest.update(_identity(spec, hashes, spec.weight))
    return digest.hexdigest()


def files_hash(paths: Sequence[Path], cache: Path) -> str:
    """Return a hash of the contents of files, in order, as 16 hexadecimal digits; see `text_hash`."""
    digest, hashes = hashlib.blake2b(digest_size=8), FileHashes(cache)
    for path in paths:
        digest.update(bytes.fromhex(hashes.of(path)))
    return digest.hexdigest()


def _identity(spec: CorpusSpec, hashes: FileHashes, *more: float) -> bytes:
    """Return format, keys and contents of a corpus as bytes."""
    # Without the two original formats, so that the hash is that of runs which began before there were others.
    parts = [b"" if spec.form in ("", ".tsv", ".jsonl") else spec.form.encode()]
    parts.append(json.dumps([str(spec.source_key), str(spec.target_key), *more]).encode())
    for path in spec.files:
        try:
            parts.append(bytes.fromhex(hashes.of(path)))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}; specify a readable file") from None
    return b"".join(parts)


def content_hash(
    config: Config, specs: Sequence[CorpusSpec], text: str | None = None, tokenizer: Tokenizer | None = None
) -> str:
    """Return the hash of a store's origin as 16 hexadecimal digits: text, filters, settings of the tokenizer.

    text: `text_hash(specs)`, if known.  tokenizer: the tokenizer of an existing model, used instead of the settings.
    """
    settings = _settings(config, tokenizer) | {"corpora": config.tokenizer.corpora}
    content = json.dumps(settings, sort_keys=True) + (text or text_hash(specs))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _settings(config: Config, tokenizer: Tokenizer | None) -> dict[str, Any]:
    settings = config.tokenizer.model_dump(exclude={"sampling": True, "corpora": True, "target": {"sampling"}})
    del settings["add_words"]  # only for a given tokenizer
    used = settings if tokenizer is None else tokenizer_hash(tokenizer)
    return {"version": VERSION, "filter": config.parallel.filter.model_dump(), "tokenizer": used}


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Return a hash of the files of a tokenizer, as 32 hexadecimal digits."""
    return _key(*(part for name, content in sorted(tokenizer.files().items()) for part in (name.encode(), content)))


class Origin:
    """Keys of the parts of a store, with which other stores find those they can share.

    tokenizer: of the vocabulary, which is learned from the corpora unless it is given.  parts: of the ids and text of
    each corpus; if duplicates are dropped, they also depend on the corpora before it.
    """

    def __init__(
        self, config: Config, specs: Sequence[CorpusSpec], cache: Path, tokenizer: Tokenizer | None = None
    ) -> None:
        hashes, settings = FileHashes(cache), json.dumps(_settings(config, tokenizer), sort_keys=True).encode()
        corpora = [_identity(spec, hashes) for spec in specs]
        learned = corpora[: config.tokenizer.corpora] if tokenizer is None else []
        self.tokenizer = _key(settings, *learned)
        self.parts = []
        for i, corpus in enumerate(corpora):
            before = corpora[:i] if config.parallel.filter.drop_duplicates else []
            self.parts.append(_key(self.tokenizer.encode(), *before, corpus))


def _key(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
