"""The output folder of a bulk translation: whole shards under their own names, and what is not whole yet out of sight.

    OUT/<shard>                            there only when it is complete
    OUT/_dragoman/manifest.json            the model, the settings and the input, told once
    OUT/_dragoman/path                     which path of translating, in which precision, all chunks went
    OUT/_dragoman/shards/<shard>/<chunk>   a finished chunk: a line of JSON (lines, flags), then its output
    OUT/_dragoman/shards/<shard>/done      the shard's lines, bytes and flags; the chunks are removed last

Each of them is written under another name, flushed and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.bulk.shards import JOURNAL, Contents, Shard
from dragoman.bulk.work import Done
from dragoman.errors import DataError, DragomanError, UsageError
from dragoman.io.lock import lock_folder
from dragoman.io.reading import open_regular, read_json, read_text
from dragoman.io.writing import atomic_file, flush_file, flush_folder, not_written

__all__ = ["Journal", "ShardDone"]

_SHOWN = 10
_KEPT = "What is done is kept; the same command, run again, continues from there."
_DAMAGED = "It was altered; give another --output, or remove this folder and start again."


@dataclass(frozen=True)
class ShardDone:
    """A shard translated.  lines: of the input; bytes: of the output; flags: how often each was seen."""

    lines: int
    bytes: int
    flags: dict[str, int]


class Journal:
    """An output folder that is being written: see `opened`."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / JOURNAL
        self.path: str | None = None

    @classmethod
    @contextlib.contextmanager
    def opened(cls, out: Path, manifest: Mapping[str, Any]) -> Iterator[Journal]:
        """Begin a job, or go on with the same one.

        Raises UsageError where the folder holds another job or other files, or where another process is at work in it.
        """
        journal = cls(out)
        file = journal.folder / "manifest.json"
        if out.exists() and not out.is_dir():
            raise UsageError(f"{out}: a file; a bulk translation goes into a folder: give a new one with --output")
        if out.is_dir() and not file.exists() and any(path != journal.folder for path in out.iterdir()):
            raise UsageError(f"{out}: holds other files, and no job to go on with; give an empty or a new folder")
        with journal._named():
            journal.folder.mkdir(parents=True, exist_ok=True)
        advice = "wait until it has finished, or name another --output"
        with lock_folder(journal.folder, f"{out}: this output folder", advice, journal._named()):
            now = json.loads(json.dumps(manifest))
            if file.exists():
                journal._compare(read_json(file, DataError, _DAMAGED), now)
            else:
                with journal._named():
                    _write(file, json.dumps(now, indent=1, ensure_ascii=False).encode())
            yield journal

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Raise DragomanError that names the folder where something cannot be written."""
        try:
            yield
        except OSError as error:
            raise DragomanError(not_written(error.filename or self.out, error, _KEPT)) from error

    def _compare(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        old, new = dict(_flat(before)), dict(_flat(now))
        keys = [key for key in old | new if old.get(key) != new.get(key)]
        if not keys:
            return
        told = [f"  - {key}: {old.get(key, 'nothing')} then, {new.get(key, 'nothing')} now" for key in keys[:_SHOWN]]
        if len(keys) > _SHOWN:
            told.append(f"  - and {len(keys) - _SHOWN:,} more")
        raise UsageError(
            "\n".join([f"{self.out}: began as another job, and cannot go on as this one:", *told])
            + "\nGive the model, settings and input of that job to go on with it, or another --output."
        )

    def kept(self, shard: Shard) -> set[int]:
        """The numbers of the chunks that are done."""
        folder = self._of(shard)
        names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
        return {int(name) for name in names if re.fullmatch("[0-9]+", name)}

    def keep(self, shard: Shard, number: int, done: Done) -> None:
        """Put a finished chunk on disk, for good.  Raises UsageError as `agree` does."""
        self.agree(done.path)
        head = json.dumps({"lines": done.lines, "flags": done.flags}).encode()
        with self._named():
            _write(self._of(shard) / str(number), head + b"\n" + done.payload)

    def agree(self, path: str) -> None:
        """Raise UsageError where another path of translating (see `Done`) was gone before."""
        file = self.folder / "path"
        if self.path is None and file.exists():
            self.path = read_text(file, DataError, _DAMAGED)
        if self.path is None:
            with self._named():
                _write(file, path.encode())
            self.path = path
        if self.path != path:
            raise UsageError(
                f"{self.out}: what is done went by another path ({self.path}) than this would ({path}); words might "
                "differ. Go on by that one (--engine, --quantize, the same kind of machine), or give another --output."
            )

    def finished(self, shard: Shard) -> ShardDone | None:
        """What is known of a shard that is complete.  Raises DataError where its output was altered since."""
        file, output = self._of(shard) / "done", self.out / shard.name
        if not file.exists() or not output.exists():
            return None
        try:
            done = ShardDone(**read_json(file, DataError, _DAMAGED))
        except TypeError:
            raise DataError(f"{file}: does not describe a finished file. {_DAMAGED}") from None
        if output.stat().st_size != done.bytes:
            raise DataError(
                f"{output}: {output.stat().st_size:,} bytes, and {done.bytes:,} were written; it was altered since. "
                "Remove it, and the same command translates it again."
            )
        self._drop(shard)
        return done

    def finish(self, shard: Shard, contents: Contents, chunks: int) -> ShardDone:
        """Join the chunks to the output.  Raises DataError where the input is not what it was when it was counted."""
        folder, output = self._of(shard), self.out / shard.name
        heads = [self._head(folder / str(number)) for number in range(chunks)]
        lines = sum(head["lines"] for head in heads)
        if lines != contents.lines or shard.sha256() != contents.sha256:
            self._drop(shard)
            raise DataError(
                f"{shard.path}: was changed while it was translated. Put back what it was ({contents.lines:,} lines, "
                f"sha256 {contents.sha256}) and run the same command again, or give another --output."
            )
        flags = sum((Counter(head["flags"]) for head in heads), Counter[str]())
        with self._named():
            shard.write((self._payload(folder / str(number)) for number in range(chunks)), folder / "joined")
            done = ShardDone(lines, (folder / "joined").stat().st_size, dict(sorted(flags.items())))
            _write(folder / "done", json.dumps(vars(done)).encode())
            output.parent.mkdir(parents=True, exist_ok=True)
            _settle(folder / "joined", output)
            self._drop(shard)
        return done

    @staticmethod
    def _head(chunk: Path) -> dict[str, Any]:
        try:
            with open_regular(chunk) as file:
                head: dict[str, Any] = json.loads(file.readline(1 << 20))
            if isinstance(head["lines"], int) and isinstance(head["flags"], dict):
                return head
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            pass
        raise DataError(f"{chunk}: damaged. Remove this file, and the same command translates its lines again.")

    @staticmethod
    def _payload(chunk: Path) -> bytes:
        return chunk.read_bytes().partition(b"\n")[2]

    def _drop(self, shard: Shard) -> None:
        """Remove what only an unfinished shard needs."""
        for number in self.kept(shard):
            (self._of(shard) / str(number)).unlink()
        (self._of(shard) / "joined").unlink(missing_ok=True)

    def _of(self, shard: Shard) -> Path:
        return self.folder / "shards" / shard.name


def _flat(document: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{at}{key}: ")
        else:
            yield f"{at}{key}", value


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(data)


def _settle(part: Path, path: Path) -> None:
    """Give a written file its name, when all of it is on the disk."""
    flush_file(part)
    part.replace(path)
    flush_folder(path.parent)
