"""Text of language models: the ids of all texts, concatenated and read in windows, from a file or in memory."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.config import TokenizerConfig
from dragoman.data.store.folder import (
    VERIFIED,
    DamagedStoreError,
    FileHashes,
    StoreFiles,
    build_once,
    damaged,
    load_tokenizer,
    read_about,
    tokenizer_hash,
    write_about,
)
from dragoman.data.store.reader import id_type, record_hash
from dragoman.errors import DataError
from dragoman.io.lines import read_lines
from dragoman.io.reading import RandomAccessFile, hash_files
from dragoman.io.run_log import Reporter
from dragoman.tokenizers import EOS, Tokenizer, learn_tokenizer

_VERSION = "text 1"
_BLOCK = 1 << 16
"""Ids per block, each with a hash that is verified when the block is read."""
_CACHED = 64
_PROGRESS_EVERY = 10_000


def read_paragraphs(path: Path) -> Iterator[str]:
    """Yield the paragraphs of a file, which are separated by blank lines, with "\\n" between lines."""
    for has_text, lines in groupby(read_lines(path), key=lambda line: bool(line.strip())):
        if has_text:
            yield "\n".join(lines)


@dataclass(frozen=True)
class TextStream:
    """ids: of all texts, concatenated.  bounds: the start of each text, and the end of the last.

    characters: length of the texts, including line ends.
    """

    ids: NDArray[np.uint32] | StoredIds
    bounds: NDArray[np.int64]
    characters: int

    def spans(self, block: int, offset: int = 0) -> NDArray[np.int64]:
        """Return windows (start, end) of at most `block` ids that cover every id once and stay within one text.

        offset: length of the first window of each text; 0 means `block`.
        """
        begins, ends = self.bounds[:-1], self.bounds[1:]
        first = offset or block
        # Windows after the first of each text, rounded up.
        counts = np.where(ends > begins, 1 + np.maximum(0, -((begins + first - ends) // block)), 0)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # of the window in its text
        text_begins = np.repeat(begins, counts)
        starts = text_begins + np.where(number > 0, first + (number - 1) * block, 0)
        stops = np.minimum(text_begins + first + number * block, np.repeat(ends, counts))
        return np.stack([starts, stops], axis=1).astype(np.int64)

    def window(self, span: NDArray[np.int64]) -> list[int]:
        ids: list[int] = self.ids[span[0] : span[1]].tolist()
        return ids


def texts_of(paths: Iterable[Path], form: str, encode: Callable[[str], list[int]]) -> Iterator[tuple[list[int], int]]:
    """Yield the ids and the number of characters, including line ends, of texts in files.

    form: "lines" and "paragraphs" make each line or paragraph a text that ends with EOS; "stream" makes all files one
    text, including blank lines, of which the lines are yielded.  encode: text -> ids without EOS.  Raises DataError as
    `read_lines` does.
    """
    for path in paths:
        for text in read_paragraphs(path) if form == "paragraphs" else read_lines(path):
            if form == "stream":
                yield encode(f"{text}\n"), len(text) + 1
            elif text.strip():
                yield [*encode(text), EOS], len(text) + 1


def read_stream(paths: Iterable[Path], form: str, encode: Callable[[str], list[int]]) -> TextStream:
    """Return the ids of files in memory; see `texts_of`."""
    ids, bounds, characters = array("I"), array("q", [0]), 0
    for found, length in texts_of(paths, form, encode):
        ids.extend(found)
        characters += length
        if form != "stream":
            bounds.append(len(ids))
    if form == "stream" and ids:
        bounds.append(len(ids))
    return TextStream(np.array(ids, dtype=np.uint32), np.array(bounds, dtype=np.int64), characters)


class StoredIds:
    """The ids in a file, read in blocks, so that the memory does not depend on the size of the text."""

    def __init__(self, file: RandomAccessFile, item: np.dtype[np.generic], hashes: list[int], limit: int) -> None:
        """hashes: of the blocks.  limit: size of the vocabulary."""
        self._file, self._item, self._hashes, self._limit = file, item, hashes, limit
        self._block = lru_cache(_CACHED)(self._read)

    def __len__(self) -> int:
        return len(self._file) // self._item.itemsize

    def __getitem__(self, span: slice) -> NDArray[np.generic]:
        """Return the ids of a span with a start and an end.  Raises DataError if a block is damaged."""
        first, last = int(span.start), int(span.stop)
        parts = []
        for block in range(first // _BLOCK, -(-last // _BLOCK)):
            begin = block * _BLOCK
            parts.append(self._block(block)[max(first - begin, 0) : last - begin])
        return np.concatenate(parts) if len(parts) != 1 else parts[0]

    def verify(self) -> None:
        """Read all blocks.  Raises DamagedStoreError."""
        try:
            for block in range(len(self._hashes)):
                self._block(block)
        except DataError as error:
            raise DamagedStoreError(str(error)) from None

    def _read(self, block: int) -> NDArray[np.generic]:
        size = _BLOCK * self._item.itemsize
        content = self._file.read(block * size, min(size, len(self._file) - block * size))
        ids = np.frombuffer(content, self._item)
        if record_hash(content) != self._hashes[block] or int(ids.max(initial=0)) >= self._limit:
            raise damaged(self._file.path)
        return ids


@dataclass(frozen=True)
class PreparedText:
    """A tokenizer and the ids of the text it was learned from.  data_hash: of the files."""

    tokenizer: Tokenizer
    stream: TextStream
    data_hash: str


def prepare_text(
    config: TokenizerConfig,
    paths: list[Path],
    form: str,
    cache: Path,
    reporter: Reporter,
    *,
    joins_lines: bool = False,
    tokenizer: Tokenizer | None = None,
) -> PreparedText:
    """Return the ids of text files: those in `cache`, if the files and the settings are unchanged.

    form: see `texts_of`.  joins_lines: replace line ends within a paragraph by spaces; otherwise, the tokenizer
    preserves every space and line end.  tokenizer: default: learned from the files.  Raises DataError for files without
    text, and as `learn_tokenizer` does.
    """
    text = hash_files(paths, FileHashes(cache).of)
    without = {"sampling", "corpora", "add_words", "tags"}
    used = config.model_dump(exclude=without) if tokenizer is None else tokenizer_hash(tokenizer)
    document: dict[str, Any] = {"version": _VERSION, "tokenizer": used}
    document |= {"form": form, "joins_lines": joins_lines, "text": text}
    key = hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=8).hexdigest()
    reporter.phase("reading the training data")
    (opened, stream, warnings), existed = build_once(
        cache / key,
        _open,
        lambda folder, _: _write(folder, config, paths, form, joins_lines, reporter, tokenizer),
        reporter,
    )
    if existed:
        reporter.log(f"data: reused from {cache / key}")
    for warning in warnings:
        reporter.warn(warning)
    return PreparedText(opened, stream, text)


def _write(
    folder: Path,
    config: TokenizerConfig,
    paths: list[Path],
    form: str,
    joins_lines: bool,
    reporter: Reporter,
    tokenizer: Tokenizer | None,
) -> None:
    def joined(text: str) -> str:
        return text.replace("\n", " ") if joins_lines else text

    def lines() -> Iterable[str]:
        for path in paths:
            yield from map(joined, read_paragraphs(path) if joins_lines else read_lines(path))

    if not any(map(str.strip, lines())):
        names = ", ".join(map(str, paths))
        raise DataError(f"nothing to train on in {names}: all lines are blank; specify other files")
    warnings: list[str] = []
    if tokenizer is None:
        reporter.phase("learning the vocabulary")
        tokenizer = learn_tokenizer(config, lines(), lossless=not joins_lines, log=warnings.append)
    encode = tokenizer.encode_source
    item, bounds, characters, count = id_type(tokenizer.source_size), array("q", [0]), 0, 0
    hashes: list[int] = []
    pending, size = bytearray(), _BLOCK * item.itemsize
    reporter.phase("encoding the training data")
    with (folder / "ids").open("wb") as file:

        def flush(least: int) -> None:
            while len(pending) >= least:
                block = bytes(pending[:size])
                hashes.append(record_hash(block))
                file.write(block)
                del pending[:size]

        texts = texts_of(paths, form, lambda text: encode(joined(text))[:-1])
        for number, (ids, length) in enumerate(texts, start=1):
            pending += np.array(ids, item).tobytes()
            count += len(ids)
            characters += length
            if form != "stream":
                bounds.append(count)
            flush(size)
            if number % _PROGRESS_EVERY == 0:
                reporter.phase("encoding the training data", f"{characters:,} characters")
        flush(1)
    if form == "stream":
        bounds.append(count)
    (folder / "bounds").write_bytes(bounds.tobytes())
    for name, content in tokenizer.files().items():
        (folder / name).write_bytes(content)
    about: dict[str, Any] = {"version": _VERSION, "characters": characters, "blocks": hashes, "warnings": warnings}
    write_about(folder, about, {"ids": {"bytes": (folder / "ids").stat().st_size}})  # the blocks have hashes


def _open(folder: Path) -> tuple[Tokenizer, TextStream, list[str]]:
    """Open prepared text and verify all but the ids.  Raises DamagedStoreError."""
    about = read_about(folder, _VERSION)
    files = StoreFiles(folder, about["files"])
    tokenizer = load_tokenizer(folder)
    size = tokenizer.source_size
    ids = StoredIds(files.open("ids"), id_type(size), about["blocks"], size)
    if about["files"]["ids"]["bytes"] <= VERIFIED:
        ids.verify()
    bounds = np.fromfile(folder / "bounds", np.int64)
    return tokenizer, TextStream(ids, bounds, about["characters"]), about["warnings"]
