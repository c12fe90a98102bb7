"""A bulk translation from its beginning, or from where it was killed, to its end."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dragoman._version import __version__
from dragoman.bulk.journal import Journal, ShardDone
from dragoman.bulk.shards import COLUMNS, Contents, Shard, find_shards, same_but_for_case
from dragoman.bulk.work import Chunk, Form, Job, Translated, Worker, model_sha256
from dragoman.errors import DataError, UsageError

__all__ = ["Summary", "translate_bulk"]

_FORMAT_VERSION = 1
_SECONDS_BETWEEN = 5.0

Log = Callable[[str], object]


@dataclass(frozen=True)
class Summary:
    """What lies in the output folder now.  flags: how often each was seen, over all shards."""

    shards: int
    lines: int
    flags: dict[str, int]


def translate_bulk(
    job: Job,
    inputs: Sequence[Path],
    output: Path,
    *,
    column: str | None = None,
    chunk_lines: int = 2000,
    ray: bool = False,
    log: Log = lambda text: None,
) -> Summary:
    """Translate files and folders into the folder `output`, each shard once; go on where an earlier call was killed.

    column: of Parquet, the one to translate.  chunk_lines: lines translated at once, and lost at most by a kill.
    ray: over the workers of a Ray cluster.  log: is given lines about the progress.  Raises UsageError, DataError and
    ModelFolderError; what is done stays done.
    """
    from dragoman.models.model_folder import find_model

    job = replace(job, model=find_model(job.model).resolve())  # no pointer may move meanwhile
    settings = job.settings()
    added = COLUMNS if settings["nbest"] > 1 else COLUMNS[:-1]
    shards = find_shards(inputs, column, added)
    _check(job, inputs, output, shards, chunk_lines)
    sha256 = model_sha256(job.model, bool(job.load.get("shortlist")))
    worker = None if ray else Worker(job, sha256)  # what is wrong with it comes before the long reading
    if worker is not None:
        log(worker.description)
    log(f"reading the input, files: {len(shards):,}")
    contents = _all_contents(shards)
    manifest = {
        "format_version": _FORMAT_VERSION,
        "package_version": __version__,
        "model": sha256,
        "settings": settings | {"column": column, "chunk_lines": chunk_lines},
        "inputs": {shard.name: asdict(held) for shard, held in contents.items()},
    }
    with Journal.opened(output, manifest) as journal:
        # Also where nothing is left to do: what is told of this worker would be taken for what wrote the output.
        if worker is not None:
            journal.agree(worker.path)
        run = _Run(journal, contents, chunk_lines, settings["form"], log)
        run.work(_on_ray(job, sha256, run) if worker is None else _one_by_one(worker, run))
        return run.summary()


def _check(job: Job, inputs: Sequence[Path], output: Path, shards: Sequence[Shard], chunk_lines: int) -> None:
    problems = [
        f"{output} lies in the input {folder}, and would be translated itself: give another --output"
        for folder in inputs
        if folder.is_dir() and output.resolve().is_relative_to(folder.resolve())
    ]
    problems += same_but_for_case(shards, output)
    if chunk_lines < 1:
        problems.append(f"chunk_lines = {chunk_lines}: must be at least 1")
    tables = [shard for shard in shards if shard.table]
    if job.jsonl and tables:
        problems.append(f"{tables[0].path}: --jsonl writes lines; a table gets columns ({', '.join(COLUMNS[:-1])})")
    if problems:
        raise UsageError("\n".join(problems))


def _all_contents(shards: Sequence[Shard]) -> dict[Shard, Contents]:
    """Read every input to its end before the work begins.  Raises DataError with what is wrong in each of them."""
    found, problems = {}, []
    for shard in shards:
        try:
            found[shard] = shard.contents()
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return found


def _one_by_one(worker: Worker, run: _Run) -> Translated:
    for chunk in run.chunks():
        yield chunk, worker.translate(chunk.texts, chunk.form)


def _on_ray(job: Job, sha256: Mapping[str, str], run: _Run) -> Translated:
    from dragoman.bulk.cluster import translated_on_ray

    count = sum(map(len, run.missing.values()))
    return translated_on_ray(job, sha256, run.chunks(), count, run.journal.agree)


class _Run:
    """What is left to do, and what is done with each chunk that comes back, in whatever order."""

    def __init__(
        self, journal: Journal, contents: Mapping[Shard, Contents], chunk_lines: int, form: Form, log: Log
    ) -> None:
        self.journal, self.contents, self.chunk_lines, self.form, self.log = journal, contents, chunk_lines, form, log
        self.done: dict[str, ShardDone] = {}
        self.missing: dict[str, set[int]] = {}
        self.shards = {shard.name: shard for shard in contents}
        kept = 0
        for shard, held in contents.items():
            if (done := journal.finished(shard)) is not None:
                self.done[shard.name] = done
                kept += done.lines
                continue
            here = journal.kept(shard)
            self.missing[shard.name] = set(range(self._chunks_of(held))) - here
            kept += sum(self._lines_of(held, number) for number in here)
        self.pace = _Pace(log, sum(held.lines for held in contents.values()), kept)
        for name in [name for name, left in self.missing.items() if not left]:
            self._finish(name)

    def _chunks_of(self, held: Contents) -> int:
        return max(1, -(-held.lines // self.chunk_lines))  # one of no lines makes the output of an empty shard

    def _lines_of(self, held: Contents, number: int) -> int:
        return min(self.chunk_lines, held.lines - number * self.chunk_lines)

    def chunks(self) -> Iterator[Chunk]:
        """What is missing, shard by shard, in order."""
        for name, left in list(self.missing.items()):
            shard = self.shards[name]
            texts, wanted = shard.texts(), sorted(left)
            for number in range(wanted[-1] + 1):
                some = list(itertools.islice(texts, self.chunk_lines))
                if number in wanted:
                    yield Chunk(name, number, some, "row" if shard.table else self.form)

    def work(self, translated: Translated) -> None:
        """Keep what comes back, and join a shard when its last chunk is there."""
        with contextlib.closing(translated):
            for chunk, done in translated:
                self.journal.keep(self.shards[chunk.shard], chunk.number, done)
                self.missing[chunk.shard].discard(chunk.number)
                if not self.missing[chunk.shard]:
                    self._finish(chunk.shard)
                self.pace.step(done.lines, len(self.done), len(self.contents))

    def _finish(self, name: str) -> None:
        shard = self.shards[name]
        held = self.contents[shard]
        self.done[name] = self.journal.finish(shard, held, self._chunks_of(held))
        del self.missing[name]

    def summary(self) -> Summary:
        """Over all shards, those of earlier calls too."""
        flags = sum((Counter(done.flags) for done in self.done.values()), Counter[str]())
        return Summary(len(self.done), sum(done.lines for done in self.done.values()), dict(sorted(flags.items())))


class _Pace:
    """Tells how far the work is, now and then."""

    def __init__(self, log: Log, total: int, kept: int) -> None:
        self.log, self.total, self.kept, self.new = log, total, kept, 0
        self.begin = self.last = time.monotonic()
        log(f"{total:,} lines" + (f", {kept:,} of them done before" if kept else ""))

    def step(self, lines: int, done: int, shards: int) -> None:
        self.new += lines
        now = time.monotonic()
        finished = self.kept + self.new == self.total
        if now - self.last < _SECONDS_BETWEEN and not finished:
            return
        self.last = now
        speed = self.new / max(now - self.begin, 1e-3)
        left = (self.total - self.kept - self.new) / max(speed, 1e-3)
        self.log(
            f"{self.kept + self.new:,} of {self.total:,} lines, {done:,} of {shards:,} files, {speed:,.0f} lines/s, "
            + (f"{left / 60:,.0f} min left" if left >= 90 else f"{left:.0f} s left")
        )
