"""Folders of prepared data, named by a hash of what they are made from: corpora, filter and tokenizer.

`store.json` describes all files, and the folder is built once, by one of the processes that need it.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from dragoman.config import Config
from dragoman.data.corpus import CorpusSpec, by_weight
from dragoman.errors import DataError, DragomanError, ModelFolderError, TrainingError
from dragoman.io.reading import RandomAccessFile, hash_file, read_json
from dragoman.io.run_log import Reporter
from dragoman.io.writing import atomic_folder, not_written, write_file
from dragoman.tokenizers import Tokenizer
from dragoman.tokenizers.tokenizer import SYMBOLS

ABOUT = "store.json"
REMEDY = "Remove the folder; the next training run rebuilds it."
VERIFIED = 256 << 20
"""Bytes up to which all files are verified when a folder is opened; larger ones, in pieces when they are read."""
_MARK = "damaged"
_OPEN_FILES = 256
_POLL = 0.5  # seconds
_Prepared = TypeVar("_Prepared")
VERSION = 3
"""Of the format; stores of other versions are built again, under another name."""
_HASHES = "hashes.json"
LARGE = 64 << 20
"""Bytes from which the hash of a file is remembered together with its size, inode and time of modification."""
_SETTLED = 2_000_000_000
"""Nanoseconds after a modification before a hash is remembered: later writes then change the time."""


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


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of prepared data.  Raises DamagedStoreError."""
    try:
        return Tokenizer.load(folder)
    except ModelFolderError as error:
        raise DamagedStoreError(f"{error}. {REMEDY}") from None


def damaged(path: Path) -> DataError:
    """Return the error for a file with damaged content; mark its folder, so that the next run rebuilds it."""
    with suppress(OSError):
        (path.parent / _MARK).touch()
    return DataError(f"{path}: was changed or is damaged. Run the command again to rebuild it.")


class StoreFiles:
    """The open files of a folder of prepared data, at most 256."""

    def __init__(
        self, folder: Path, expected: Mapping[str, Mapping[str, Any]], in_pieces: tuple[str, ...] = ()
    ) -> None:
        """Open files and verify sizes and hashes.  Raises DamagedStoreError that names all damaged files.

        expected: files of `store.json`.  in_pieces: suffixes of files that are verified in pieces, when they are read,
        if all files are more than 256 MB.
        """
        self._folder, self._expected = folder, expected
        self._open: OrderedDict[str, RandomAccessFile] = OrderedDict()
        self._lock = threading.Lock()
        is_small = sum(file["bytes"] for file in expected.values()) <= VERIFIED

        def problem(name: str) -> str:
            try:
                file = RandomAccessFile(folder / name)
                if len(self._open) < _OPEN_FILES:
                    self._open[name] = file
                if len(file) != expected[name]["bytes"]:
                    return f"{name} has {len(file):,} bytes instead of {expected[name]['bytes']:,}"
                if "blake2b" not in expected[name] or (not is_small and name.endswith(in_pieces)):
                    return ""
                return "" if file.digest() == expected[name]["blake2b"] else f"{name} was altered (its hash differs)"
            except OSError as error:
                return f"{name} cannot be read ({error.strerror or error})"

        with ThreadPoolExecutor() as pool:  # hashing releases the GIL
            problems = list(filter(None, pool.map(problem, expected)))
        if problems:
            self.close()
            raise DamagedStoreError(f"{folder}: {'; '.join(problems)}. {REMEDY}")

    def open(self, name: str) -> RandomAccessFile:
        """Return an open file.  Raises DataError."""
        with self._lock:
            file = self._open.pop(name, None)
            if file is None:
                try:
                    file = RandomAccessFile(self._folder / name)
                except OSError as error:
                    problem = error.strerror or error
                    raise DataError(f"{self._folder / name}: cannot be read: {problem}. Start again.") from None
                if len(self._open) >= _OPEN_FILES:
                    self._open.popitem(last=False)  # closed when nobody reads it
            self._open[name] = file
            return file

    def close(self) -> None:
        """Close all files, because Windows cannot rename a folder that contains an open file."""
        for file in self._open.values():
            file.close()


def build_once(
    folder: Path, opened: Callable[[Path], _Prepared], write: Callable[[Path, ExitStack], None], reporter: Reporter
) -> tuple[_Prepared, bool]:
    """Open the prepared data in a folder, or write them there; return them, and whether they existed.

    opened: opens a complete folder and raises DamagedStoreError if it is damaged.  write: writes the files into a
    temporary folder, and may enter contexts.  Raises TrainingError if the folder cannot be written.
    """

    def is_valid(path: Path) -> bool:
        with suppress(DamagedStoreError):
            opened(path)
            return True
        return False

    existing = _reused(folder, opened, reporter)
    if existing is not None:
        return existing, True
    try:
        with ExitStack() as stack:
            if stack.enter_context(_turn(folder, reporter)):
                existing = _reused(folder, opened, reporter)
                if existing is not None:
                    return existing, True  # another process has built it meanwhile
            write(stack.enter_context(atomic_folder(folder, is_valid)), stack)
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


def _identity(spec: CorpusSpec, hashes: FileHashes, *more: float) -> bytes:
    """Return format, keys and contents of a corpus as bytes."""
    # Without the two original formats, so that the hash is that of runs which began before there were others.
    parts = [b"" if spec.form in ("", ".tsv", ".jsonl") else spec.form.encode()]
    tag = [] if spec.tag is None else [spec.tag]
    parts.append(json.dumps([str(spec.source_key), str(spec.target_key), *more, *tag]).encode())
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
    settings["tags"] = tags_of(config)
    if not settings["tags"]:
        del settings["tags"]  # so that the hash is that of stores from before there were tags
    if config.parallel.protect:
        settings["symbols"] = len(SYMBOLS)
    used = settings if tokenizer is None else tokenizer_hash(tokenizer)
    groups = {"context": config.parallel.context} if config.parallel.context > 1 else {}
    return {"version": VERSION, "filter": config.parallel.filter.model_dump(), "tokenizer": used, **groups}


def tags_of(config: Config) -> list[str]:
    """Return the tags that the vocabulary of parallel data contains, each once."""
    corpora = [corpus.tag for corpus in config.parallel.train if corpus.tag is not None]
    return list(dict.fromkeys([*corpora, *config.tokenizer.tags]))


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Return a hash of the files of a tokenizer, as 32 hexadecimal digits."""
    return _key(*(part for name, content in sorted(tokenizer.files().items()) for part in (name.encode(), content)))


def origin_keys(
    config: Config, specs: Sequence[CorpusSpec], cache: Path, tokenizer: Tokenizer | None = None
) -> tuple[str, list[str]]:
    """Return the keys of the vocabulary and of each part of a store, with which other stores find what they can share.

    The vocabulary is learned from the corpora unless it is given.  A part is the ids and text of a corpus; if
    duplicates are dropped, they also depend on the corpora before it in the order `by_weight`.
    """
    hashes, settings = FileHashes(cache), json.dumps(_settings(config, tokenizer), sort_keys=True).encode()
    corpora = [_identity(spec, hashes) for spec in specs]
    learned = corpora[: config.tokenizer.corpora] if tokenizer is None else []
    vocabulary = _key(settings, *learned)
    parts = []
    order = by_weight(specs)
    for i, corpus in enumerate(corpora):
        before = order[: order.index(i)] if config.parallel.filter.drop_duplicates else []
        parts.append(_key(vocabulary.encode(), *(corpora[number] for number in before), corpus))
    return vocabulary, parts


def _key(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
