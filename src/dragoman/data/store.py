"""Token ids of a corpus on disk, read pair by pair, so that training data may be larger than memory.

A store is a folder named after a hash of its origin: text, filters, tokenizer.  It is built once and reused while
these are unchanged.  Files: `tokenizer.model`, `{source,target}.{ids,offsets}`, `{source,target}.txt` with
`.text_offsets` (the filtered text, for subword sampling), and `store.json`, written last.

`store.json` contains the size and BLAKE2b hash of every other file, and a hash of itself.  All are verified whenever a
store is opened, which reads about as many bytes as hashing the corpus.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import sys
from array import array
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config
from dragoman.data.corpus import CorpusSpec, FilterStats, PairFilter, read_pairs
from dragoman.data.tokenizer import EOS, Tokenizer, train_tokenizer
from dragoman.errors import DataError, ModelFolderError, TrainingError
from dragoman.io.lines import open_lines
from dragoman.io.reading import RandomAccessFile, hash_file, read_json
from dragoman.io.run_log import Reporter
from dragoman.io.writing import atomic_folder, not_written

__all__ = ["DamagedStoreError", "Store", "build_store", "content_hash", "drop_reason", "text_hash"]

_VERSION = 2
_SIDES = ("source", "target")
_ID = np.dtype(np.uint32)
_BLOCK = 1 << 22
_TABLES = tuple(f"{side}.{kind}" for side in _SIDES for kind in ("ids", "offsets", "txt", "text_offsets"))
_PROGRESS_EVERY = 10_000  # pairs read or encoded between two progress messages
_REMEDY = "Remove the folder; the next training run rebuilds it."


class DamagedStoreError(DataError):
    """A store whose files differ from what was written; the message lists the folder and all damaged files."""


class Store:
    """Pairs of token ids by number, with a final EOS.

    Offsets are in memory; ids and text are read through open file descriptors.  Replacing the folder does not affect
    an open store, and reading a file that was truncated raises DataError.
    """

    def __init__(self, folder: Path, content: str | None = None) -> None:
        """Open and verify a store.  content: the expected content hash.  Raises DamagedStoreError."""
        self.folder = folder
        about = read_json(folder / "store.json", DamagedStoreError, _REMEDY)
        if about.get("digest") != _digest(about) or about.get("version") != _VERSION:
            raise DamagedStoreError(f"{folder / 'store.json'}: altered, or of another version. {_REMEDY}")
        if content is not None and about["content"] != content:
            raise DamagedStoreError(f"{folder}: store.json belongs to another store ({about['content']}). {_REMEDY}")
        self.stats: str = about["account"]
        self.warnings: list[str] = about.get("warnings", [])
        self.text_hash: str = about["text"]
        self.parts: list[tuple[int, float]] = [(p["pairs"], p["weight"]) for p in about["parts"]]
        files = _open_files(folder, about["files"])
        try:
            self._load(files)
        except DamagedStoreError:
            _close(files)
            raise

    def _load(self, files: Mapping[str, RandomAccessFile]) -> None:
        try:
            self.tokenizer = Tokenizer.load(self.folder)
        except ModelFolderError as error:
            raise DamagedStoreError(f"{error}. {_REMEDY}") from None
        self._ids, self._text = ([files[f"{side}.{kind}"] for side in _SIDES] for kind in ("ids", "txt"))
        self._offsets = [
            _offsets(files[f"{side}.offsets"], len(ids) // _ID.itemsize)
            for side, ids in zip(_SIDES, self._ids, strict=True)
        ]
        self._text_tables = [files[f"{side}.text_offsets"] for side in _SIDES]
        self._sizes = (self.tokenizer.source_size, self.tokenizer.target_size)
        pairs = {len(table) - 1 for table in self._offsets} | {sum(pairs for pairs, _ in self.parts)}
        if len(pairs) > 1:
            raise DamagedStoreError(
                f"{self.folder}: its files disagree on the number of pairs: {sorted(pairs)}. {_REMEDY}"
            )

    def __len__(self) -> int:
        return len(self._offsets[0]) - 1

    def pair(self, number: int) -> tuple[list[int], list[int]]:
        """Return source and target ids.  Raises DataError if a file was changed since the store was opened."""
        src, tgt = (
            _ids(ids, offsets.item(number), offsets.item(number + 1), size)
            for ids, offsets, size in zip(self._ids, self._offsets, self._sizes, strict=True)
        )
        return src, tgt

    @cached_property
    def _text_offsets(self) -> list[NDArray[np.int64]]:
        return [_offsets(table, len(text)) for table, text in zip(self._text_tables, self._text, strict=True)]

    def text(self, number: int) -> tuple[str, str]:
        """Return the filtered text of a pair.  Raises DataError as `pair` does."""
        src, tgt = (
            _line(text, offsets.item(number), offsets.item(number + 1) - 1)
            for text, offsets in zip(self._text, self._text_offsets, strict=True)
        )
        return src, tgt

    def alphabets(self, at_least: int) -> tuple[str, str]:
        """Return the characters that occur at least `at_least` times in the sources, and in the targets, sorted."""
        source, target = (_alphabet(text, at_least) for text in self._text)
        return source, target

    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the tokens of each source and each target, including EOS."""
        src, tgt = (np.diff(offsets) + 1 for offsets in self._offsets)
        return src, tgt

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the pair numbers of one epoch: each corpus `weight` times, a fractional part by random selection."""
        drawn, first = [], 0
        for pairs, weight in self.parts:
            numbers = np.arange(first, first + pairs, dtype=np.int64)
            times, fraction = int(weight), weight - int(weight)
            drawn += [numbers] * times
            if fraction:
                least = 1 if times == 0 else 0  # each corpus contributes, so that no epoch is empty
                drawn.append(rng.permutation(numbers)[: max(least, round(fraction * pairs))])
            first += pairs
        return np.concatenate(drawn)


def _ids(file: RandomAccessFile, first: int, last: int, size: int) -> list[int]:
    """Return ids `first` to `last`, all below `size`, and EOS."""
    ids: list[int] = memoryview(file.read(first * _ID.itemsize, (last - first) * _ID.itemsize)).cast("I").tolist()
    if max(ids, default=0) >= size:
        raise _altered(file)
    ids.append(EOS)
    return ids


def _line(file: RandomAccessFile, first: int, last: int) -> str:
    try:
        return file.read(first, last - first).decode("utf-8")
    except UnicodeDecodeError:
        raise _altered(file) from None


def _alphabet(file: RandomAccessFile, at_least: int) -> str:
    counts = np.zeros(sys.maxunicode + 1, np.int64)
    decoder = codecs.getincrementaldecoder("utf-8")()
    for offset in range(0, len(file), _BLOCK):
        try:
            text = decoder.decode(file.read(offset, min(_BLOCK, len(file) - offset)))
        except UnicodeDecodeError:
            raise _altered(file) from None
        counts += np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32), minlength=len(counts))
    counts[ord("\n")] = 0  # ends the lines
    return "".join(map(chr, np.flatnonzero(counts >= at_least)))


def _altered(file: RandomAccessFile) -> DataError:
    return DataError(f"{file.path}: was changed while in use. Run the command again to rebuild it.")


def _offsets(table: RandomAccessFile, size: int) -> NDArray[np.int64]:
    """Return a table of ascending offsets from 0 to `size`."""
    length = len(table)
    offsets = np.frombuffer(table.read(0, length - length % 8), np.int64)
    if len(offsets) < 2 or length % 8 or offsets[0] != 0 or offsets[-1] != size or bool((np.diff(offsets) < 0).any()):
        raise DamagedStoreError(f"{table.path}: not a table of ascending offsets from 0 to {size:,}. {_REMEDY}")
    return offsets


def _digest(about: Mapping[str, Any]) -> str:
    text = json.dumps({key: value for key, value in about.items() if key != "digest"}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _write_about(folder: Path, about: dict[str, Any]) -> None:
    """Write `store.json` with the sizes and hashes of all files in the folder."""
    opened = {path.name: RandomAccessFile(path) for path in sorted(folder.iterdir())}
    files = {name: {"bytes": len(file), "blake2b": file.digest()} for name, file in opened.items()}
    about = {"version": _VERSION, **about, "files": files}
    content = json.dumps(about | {"digest": _digest(about)}, indent=1)
    (folder / "store.json").write_bytes(content.encode())


def _open_files(folder: Path, expected: Mapping[str, Mapping[str, Any]]) -> dict[str, RandomAccessFile]:
    """Open all files of a store and check size and hash.  Raises DamagedStoreError that names all damaged files."""
    files: dict[str, RandomAccessFile] = {}

    def problem(name: str) -> str:
        try:
            file = files[name] = RandomAccessFile(folder / name)
            if len(file) != expected[name]["bytes"]:
                return f"{name} has {len(file):,} bytes instead of {expected[name]['bytes']:,}"
            return "" if file.digest() == expected[name]["blake2b"] else f"{name} was altered (its hash differs)"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"

    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        problems = [found for found in pool.map(problem, expected) if found]
    problems += [f"{name} is not listed" for name in _TABLES if name not in expected]
    if problems:
        _close(files)
        raise DamagedStoreError(f"{folder}: {'; '.join(problems)}. {_REMEDY}")
    return files


def _close(files: Mapping[str, RandomAccessFile]) -> None:
    """Close the files of a damaged store, because Windows cannot rename a folder that contains an open file."""
    for file in files.values():
        file.close()


def text_hash(specs: list[CorpusSpec]) -> str:
    """Return a hash of the corpora as 16 hexadecimal digits: contents of the files, keys, weights.

    Raises DataError if a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=8)
    for spec in specs:
        if spec.form not in ("", ".tsv", ".jsonl"):  # the hash of stores built before there were other formats
            digest.update(spec.form.encode())
        digest.update(json.dumps([str(spec.source_key), str(spec.target_key), spec.weight]).encode())
        for path in spec.files:
            try:
                digest.update(bytes.fromhex(hash_file(path, "blake2b")))
            except OSError as error:
                raise DataError(f"{path}: cannot be read: {error.strerror or error}; specify a readable file") from None
    return digest.hexdigest()


def content_hash(config: Config, specs: list[CorpusSpec], text: str | None = None) -> str:
    """Return the hash of a store's origin as 16 hexadecimal digits: text, filters, settings of the tokenizer.

    text: `text_hash(specs)`, if known.
    """
    tokenizer = config.tokenizer.model_dump(exclude={"sampling": True, "target": {"sampling"}})
    if tokenizer["target"] is None:
        del tokenizer["target"]  # the hash of stores built before this key existed
    settings = {"version": _VERSION, "filter": config.parallel.filter.model_dump(), "tokenizer": tokenizer}
    content = json.dumps(settings, sort_keys=True) + (text or text_hash(specs))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def build_store(config: Config, specs: list[CorpusSpec], cache: Path, reporter: Reporter) -> Store:
    """Return the store of these corpora: reused if an undamaged one is in `cache`, else built there.

    reporter: receives the phases and the filter statistics.  Raises DataError if no pair is left to train on, and
    TrainingError if the store cannot be written.
    """
    reporter.phase("reading the training data")
    text = text_hash(specs)
    folder = cache / content_hash(config, specs, text)
    if os.path.lexists(folder / "store.json"):
        try:
            store = Store(folder, folder.name)
        except DamagedStoreError as error:
            reporter.warn(f"prepared data is damaged and will be rebuilt: {error}")
        else:
            _report(store, f" (reused: {folder})", reporter)
            return store
    try:
        with atomic_folder(folder, is_valid=_is_valid) as unfinished:
            _write_about(
                unfinished, {"content": folder.name, "text": text, **_fill(config, specs, unfinished, reporter)}
            )
        store = Store(folder, folder.name)
    except OSError as error:
        raise TrainingError(not_written(f"the prepared data ({folder})", error)) from error
    _report(store, "", reporter)
    return store


def _report(store: Store, note: str, reporter: Reporter) -> None:
    reporter.log(f"data: {store.stats}{note}")
    for warning in store.warnings:
        reporter.warn(warning.removeprefix("warning: "))  # a prefix in stores of earlier versions


def _is_valid(folder: Path) -> bool:
    try:
        Store(folder, folder.name)
    except DamagedStoreError:
        return False
    return True


def _fill(config: Config, specs: list[CorpusSpec], folder: Path, reporter: Reporter) -> dict[str, Any]:
    """Write all files but `store.json`; return the filter statistics, warnings, and size and weight of each corpus."""
    rules = config.parallel.filter
    pair_filter = PairFilter(rules)
    stats = pair_filter.stats
    counts: list[int] = []
    with (folder / "source.all").open("wb") as src, (folder / "target.all").open("wb") as tgt:
        for spec in specs:
            before = stats.kept
            for pair in pair_filter(read_pairs(spec, reporter.log)):
                src.write(pair.source.encode() + b"\n")
                tgt.write(pair.target.encode() + b"\n")
                if stats.kept % _PROGRESS_EVERY == 0:
                    reporter.phase("reading the training data", f"{stats.kept:,} pairs")
            counts.append(stats.kept - before)
    if not stats.kept:
        names = ", ".join(spec.name for spec in specs)
        raise DataError(
            f"nothing to train on in {names}: {stats}. Check the files and the limits in [data.filter]; "
            "'dragoman doctor' shows what they contain."
        )
    reporter.phase("learning the vocabulary")
    warnings: list[str] = []
    tokenizer = train_tokenizer(config.tokenizer, folder / "source.all", folder / "target.all", warnings.append)
    for name, content in tokenizer.files().items():
        (folder / name).write_bytes(content)
    kept = _encode(tokenizer, folder, counts, rules.max_tokens, stats, reporter)
    if not sum(kept):
        raise DataError(f"nothing to train on: {stats}. Increase data.filter.max_tokens (now {rules.max_tokens}).")
    parts = [{"pairs": n, "weight": s.weight} for n, s in zip(kept, specs, strict=True)]
    return {"account": str(stats), "warnings": warnings, "parts": parts}


def _encode(
    tokenizer: Tokenizer,
    folder: Path,
    counts: list[int],
    max_tokens: int,
    stats: FilterStats,
    reporter: Reporter,
) -> list[int]:
    """Write ids and text of the pairs within `max_tokens`; return the number kept from each corpus."""
    tables = [(array("q", [0]), array("q", [0])) for _ in _SIDES]
    kept = [0] * len(counts)
    reporter.phase("encoding the training data")
    with ExitStack() as stack:
        files = [
            [stack.enter_context((folder / f"{side}.{kind}").open("wb")) for kind in ("ids", "txt")] for side in _SIDES
        ]
        lines = zip(open_lines(folder / "source.all"), open_lines(folder / "target.all"), strict=True)
        for part, count in enumerate(counts):
            for texts in islice(lines, count):
                ids = (tokenizer.encode_source(texts[0].decode()), tokenizer.encode_target(texts[1].decode()))
                reason = drop_reason(ids, max_tokens)
                if reason:
                    stats.drop_kept(reason)
                    continue
                kept[part] += 1
                if sum(kept) % _PROGRESS_EVERY == 0:
                    reporter.phase("encoding the training data", f"{sum(kept):,} of {sum(counts):,} pairs")
                for i, (offsets, text_offsets) in enumerate(tables):
                    files[i][0].write(np.asarray(ids[i][:-1], dtype=_ID).tobytes())
                    files[i][1].write(texts[i] + b"\n")
                    offsets.append(offsets[-1] + len(ids[i]) - 1)
                    text_offsets.append(text_offsets[-1] + len(texts[i]) + 1)
    for side, (offsets, text_offsets) in zip(_SIDES, tables, strict=True):
        (folder / f"{side}.offsets").write_bytes(offsets.tobytes())
        (folder / f"{side}.text_offsets").write_bytes(text_offsets.tobytes())
        (folder / f"{side}.all").unlink()
    return kept


def drop_reason(ids: tuple[list[int], list[int]], max_tokens: int) -> str:
    """Return why an encoded pair is dropped: too many tokens, or only characters the tokenizer removes; else ""."""
    longest, shortest = max(map(len, ids)), min(map(len, ids))
    return "too_many_tokens" if longest > max_tokens else "empty" if shortest == 1 else ""
