"""Token ids of a corpus on disk, memory-mapped, so that a corpus larger than memory trains.

A store is a folder named after the content it was made from: text, filters, tokenizer.  It is built once and reused
when nothing changed.  Files: `tokenizer.model`, `{source,target}.{ids,offsets}`, `{source,target}.txt` with
`.text_offsets` (the kept text, which sampling reads), `parts`, and `store.json` last of all, so that a folder
without it is unfinished and built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config
from dragoman.data.corpus import Account, CorpusSpec, FilterRules, PairFilter, read_pairs
from dragoman.data.tokenizer import EOS, Tokenizer, train_tokenizer
from dragoman.errors import DataError

__all__ = ["Store", "build_store", "content_hash", "refused", "text_hash"]

_VERSION = 1
_SIDES = ("source", "target")


class Store:
    """Pairs of token ids by number; EOS is not stored but given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        self.account: str = about["account"]
        self.parts: list[tuple[int, float]] = [(p["pairs"], p["weight"]) for p in about["parts"]]
        self.tokenizer = Tokenizer.load(folder)
        self._ids = [np.memmap(folder / f"{s}.ids", dtype=np.uint32, mode="r") for s in _SIDES]
        self._offsets = [np.memmap(folder / f"{s}.offsets", dtype=np.int64, mode="r") for s in _SIDES]
        self._text = [np.memmap(folder / f"{s}.txt", dtype=np.uint8, mode="r") for s in _SIDES]
        self._text_offsets = [np.memmap(folder / f"{s}.text_offsets", dtype=np.int64, mode="r") for s in _SIDES]

    def __len__(self) -> int:
        return len(self._offsets[0]) - 1

    def pair(self, number: int) -> tuple[list[int], list[int]]:
        """Source and target ids, EOS last."""
        src, tgt = (
            [*ids[offsets[number] : offsets[number + 1]].tolist(), EOS]
            for ids, offsets in zip(self._ids, self._offsets, strict=True)
        )
        return src, tgt

    def text(self, number: int) -> tuple[str, str]:
        """The pair as text, as it was kept."""
        src, tgt = (
            text[offsets[number] : offsets[number + 1] - 1].tobytes().decode("utf-8")
            for text, offsets in zip(self._text, self._text_offsets, strict=True)
        )
        return src, tgt

    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens of each source and each target, EOS counted."""
        src, tgt = (np.diff(offsets) + 1 for offsets in self._offsets)
        return src, tgt

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """The pair numbers of one epoch: each corpus `weight` times, a fraction of a time by chance."""
        drawn, first = [], 0
        for pairs, weight in self.parts:
            numbers = np.arange(first, first + pairs, dtype=np.int64)
            whole, rest = int(weight), weight - int(weight)
            drawn += [numbers] * whole
            if rest:
                least = 1 if whole == 0 else 0  # no corpus is left out, and no epoch is empty
                drawn.append(rng.permutation(numbers)[: max(least, round(rest * pairs))])
            first += pairs
        return np.concatenate(drawn)


def text_hash(specs: list[CorpusSpec]) -> str:
    """The corpora as 16 hexadecimal digits: the bytes of their files, which columns are read, their weights."""
    digest = hashlib.blake2b(digest_size=8)
    for spec in specs:
        digest.update(json.dumps([str(spec.source_key), str(spec.target_key), spec.weight]).encode())
        for path in (spec.source, spec.target, spec.path):
            if path is not None:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def content_hash(config: Config, specs: list[CorpusSpec]) -> str:
    """What a store is made from, as 16 hexadecimal digits: the text, the filters, the tokenizer's settings."""
    settings = {
        "version": _VERSION,
        "filter": config.parallel.filter.model_dump(),
        "tokenizer": config.tokenizer.model_dump(exclude={"sampling"}),
    }
    text = json.dumps(settings, sort_keys=True) + text_hash(specs)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def build_store(config: Config, specs: list[CorpusSpec], cache: Path, say: Callable[[str], None]) -> Store:
    """The store of these corpora: built in `cache`, or reused when it is there already.

    `say` gets the account of what was read, kept and dropped.  Raises `DataError` when nothing is left to train on.
    """
    folder = cache / content_hash(config, specs)
    if (folder / "store.json").is_file():
        store = Store(folder)
        say(f"data: {store.account} (prepared before: {folder})")
        return store
    unfinished = cache / f".{folder.name}.{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        account, parts = _fill(config, specs, unfinished)
        about = {"version": _VERSION, "account": str(account), "parts": parts}
        (unfinished / "store.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
        _put(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    say(f"data: {account}")
    return Store(folder)


def _put(unfinished: Path, folder: Path) -> None:
    """Rename; where a neighbour has finished the same store meanwhile, and perhaps reads it already, take that one."""
    if folder.exists() and not (folder / "store.json").is_file():
        shutil.rmtree(folder)
    try:
        unfinished.rename(folder)
    except OSError:
        if not (folder / "store.json").is_file():
            raise


def _fill(config: Config, specs: list[CorpusSpec], folder: Path) -> tuple[Account, list[dict[str, float]]]:
    rules = config.parallel.filter
    keep = PairFilter(FilterRules(**rules.model_dump(exclude={"max_tokens"})))
    counts: list[int] = []
    with (folder / "source.all").open("wb") as src, (folder / "target.all").open("wb") as tgt:
        for spec in specs:
            before = keep.account.kept
            for pair in keep(read_pairs(spec)):
                src.write(_one_line(pair.source))
                tgt.write(_one_line(pair.target))
            counts.append(keep.account.kept - before)
    if not keep.account.kept:
        files = ", ".join(str(p) for s in specs for p in (s.source, s.target, s.path) if p is not None)
        raise DataError(
            f"nothing to train on in {files}: {keep.account}. Check the files and the limits in [data.filter]; "
            "'dragoman doctor' shows what is in them."
        )
    tokenizer = train_tokenizer(config.tokenizer, folder / "source.all", folder / "target.all")
    for name, content in tokenizer.files().items():
        (folder / name).write_bytes(content)
    kept = _encode(tokenizer, folder, counts, rules.max_tokens, keep.account)
    if not sum(kept):
        raise DataError(f"nothing to train on: {keep.account}. Raise max_tokens (now {rules.max_tokens}).")
    return keep.account, [{"pairs": n, "weight": s.weight} for n, s in zip(kept, specs, strict=True)]


def _encode(tokenizer: Tokenizer, folder: Path, counts: list[int], max_tokens: int, account: Account) -> list[int]:
    """Write ids and text of the pairs within `max_tokens`; return how many were kept of each corpus."""
    offsets = {s: array("q", [0]) for s in _SIDES}
    text_offsets = {s: array("q", [0]) for s in _SIDES}
    kept = [0] * len(counts)
    ids_files = [(folder / f"{s}.ids").open("wb") for s in _SIDES]
    text_files = [(folder / f"{s}.txt").open("wb") for s in _SIDES]
    try:
        lines = zip(_lines(folder / "source.all"), _lines(folder / "target.all"), strict=True)
        for part, count in enumerate(counts):
            for _ in range(count):
                texts = next(lines)
                ids = (tokenizer.encode_source(texts[0].decode()), tokenizer.encode_target(texts[1].decode()))
                reason = refused(ids, max_tokens)
                if reason:
                    account.kept -= 1
                    account.dropped[reason] += 1
                    continue
                kept[part] += 1
                for i, side in enumerate(_SIDES):
                    ids_files[i].write(np.asarray(ids[i][:-1], dtype=np.uint32).tobytes())
                    offsets[side].append(offsets[side][-1] + len(ids[i]) - 1)
                    text_files[i].write(texts[i] + b"\n")
                    text_offsets[side].append(text_offsets[side][-1] + len(texts[i]) + 1)
    finally:
        for file in (*ids_files, *text_files):
            file.close()
    for side in _SIDES:
        (folder / f"{side}.offsets").write_bytes(offsets[side].tobytes())
        (folder / f"{side}.text_offsets").write_bytes(text_offsets[side].tobytes())
        (folder / f"{side}.all").unlink()
    return kept


def refused(ids: tuple[list[int], list[int]], max_tokens: int) -> str:
    """Why a pair is dropped after all: too long in tokens, or nothing but what the tokenizer leaves out."""
    longest, shortest = max(map(len, ids)), min(map(len, ids))
    return "too_many_tokens" if longest > max_tokens else "empty" if shortest == 1 else ""


def _one_line(text: str) -> bytes:
    """The text as a line of a file; a text of a JSONL corpus may hold line ends itself, which would shift one side."""
    return text.replace("\n", " ").encode() + b"\n"


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            yield line[:-1]
