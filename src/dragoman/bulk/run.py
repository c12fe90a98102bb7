"""Run a bulk translation from its start, or from where it was interrupted, to its end."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dragoman._version import __version__
from dragoman.bulk.journal import Journal, ShardDone
from dragoman.bulk.shards import COLUMNS, Contents, Shard, find_shards
from dragoman.bulk.work import Chunk, Job, Results, Worker, model_sha256
from dragoman.errors import DataError, UsageError
from dragoman.pipelines.lines import SHOWN, FlaggedText, Form

_FORMAT_VERSION = 1
_LOG_SECONDS = 5.0

Log = Callable[[str], object]


@dataclass(frozen=True)
class Summary:
    """Contents of the output folder.  flags: count per flag, over all shards.  flagged: the first lines with flags."""

    shards: int
    lines: int
    flags: dict[str, int]
    flagged: list[FlaggedText] = field(default_factory=list)


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
    """Translate files and folders into the folder `output`, one file per input file; resume an interrupted job.

    column: text column of Parquet files.  chunk_lines: lines per chunk; an interruption loses only chunks in progress.
    ray: distribute the chunks over a Ray cluster.  log: callback for progress messages.  Raises UsageError, DataError
    and ModelFolderError; finished chunks are kept.
    """
    from dragoman.models.model_folder import find_model

    job = replace(job, model=find_model(job.model).resolve())  # a run folder may point to another checkpoint later
    settings = job.settings()
    shards = find_shards(inputs, output, column, COLUMNS if settings["nbest"] > 1 else COLUMNS[:-1])
    _check(job, inputs, output, shards, chunk_lines)
    sha256 = model_sha256(job.model, bool(job.load.get("shortlist")))
    worker = None if ray else Worker(job, sha256)  # report its errors before the input is read, which takes long
    if worker is not None:
        log(worker.description)
    if settings["split"] and job.split is None:
        log("lines are split into sentences (--no-split translates lines without splitting)")
    log(f"reading the input, files: {len(shards):,}")
    contents: dict[Shard, Contents] = {}
    problems = []
    for shard in shards:
        try:
            contents[shard] = shard.contents()
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    manifest = {
        "format_version": _FORMAT_VERSION, "package_version": __version__, "model": sha256,
        "settings": settings | {"column": column, "chunk_lines": chunk_lines},
        "inputs": {shard.name: asdict(content) for shard, content in contents.items()},
    }  # fmt: skip
    with Journal.opened(output, manifest) as journal:
        if worker is not None:
            journal.check_backend(worker.backend)  # even if nothing is left to do: the log above names this backend
        scheduler = _Scheduler(journal, contents, chunk_lines, settings["form"], log)
        if worker is not None:
            results = ((chunk, worker.translate(chunk.texts, chunk.form)) for chunk in scheduler.chunks())
        else:
            from dragoman.bulk.work import translate_on_ray

            count = sum(map(len, scheduler.missing.values()))
            results = translate_on_ray(job, sha256, scheduler.chunks(), count, journal.check_backend)
        scheduler.collect(results)
        return scheduler.summary()


def _check(job: Job, inputs: Sequence[Path], output: Path, shards: Sequence[Shard], chunk_lines: int) -> None:
    problems = [
        f"{output} is inside the input folder {folder}, so it would itself be translated: specify another --output"
        for folder in inputs
        if folder.is_dir() and output.resolve().is_relative_to(folder.resolve())
    ]
    if chunk_lines < 1:
        problems.append(f"chunk_lines = {chunk_lines}; accepted: at least 1")
    tables = [shard for shard in shards if shard.table]
    if job.jsonl and tables:
        columns = ", ".join(COLUMNS[:-1])
        problems.append(f"{tables[0].path}: --jsonl is for lines of text; tables get the columns {columns}: omit it")
    if problems:
        raise UsageError("\n".join(problems))


class _Scheduler:
    """Yields the chunks that are missing and stores their results, which may arrive in any order."""

    def __init__(
        self, journal: Journal, contents: Mapping[Shard, Contents], chunk_lines: int, form: Form, log: Log
    ) -> None:
        self.journal, self.contents, self.chunk_lines, self.form = journal, contents, chunk_lines, form
        self.done: dict[str, ShardDone] = {}
        self.missing: dict[str, set[int]] = {}
        self.shards = {shard.name: shard for shard in contents}
        resumed = 0
        for shard, content in contents.items():
            if (done := journal.finished(shard)) is not None:
                self.done[shard.name] = done
                resumed += done.lines
                continue
            stored = journal.stored_chunks(shard)
            self.missing[shard.name] = set(range(self._chunk_count(content))) - stored
            resumed += sum(min(chunk_lines, content.lines - number * chunk_lines) for number in stored)
        self.progress = _ProgressLog(log, sum(content.lines for content in contents.values()), resumed)
        for name in [name for name, numbers in self.missing.items() if not numbers]:
            self._finish(name)

    def _chunk_count(self, content: Contents) -> int:
        return max(1, -(-content.lines // self.chunk_lines))  # an empty shard has one empty chunk

    def chunks(self) -> Iterator[Chunk]:
        for name, numbers in list(self.missing.items()):
            shard, missing = self.shards[name], set(numbers)
            texts = shard.texts()
            for number in range(max(missing) + 1):
                lines = list(itertools.islice(texts, self.chunk_lines))
                if number in missing:
                    yield Chunk(name, number, lines, "row" if shard.table else self.form)

    def collect(self, results: Results) -> None:
        """Store each result, and write the output of a shard when its last chunk has arrived."""
        with contextlib.closing(results):
            for chunk, result in results:
                self.journal.store(self.shards[chunk.shard], chunk.number, result)
                self.missing[chunk.shard].discard(chunk.number)
                if not self.missing[chunk.shard]:
                    self._finish(chunk.shard)
                self.progress.update(result.lines, len(self.done), len(self.contents))

    def _finish(self, name: str) -> None:
        shard = self.shards[name]
        content = self.contents[shard]
        self.done[name] = self.journal.finish(shard, content, self._chunk_count(content))
        del self.missing[name]

    def summary(self) -> Summary:
        flags = sum((Counter(done.flags) for done in self.done.values()), Counter[str]())
        found = ((shard.name, *one) for shard in self.contents for one in self.done[shard.name].flagged)
        flagged = [FlaggedText(n, n, tuple(names), name) for name, n, names in itertools.islice(found, SHOWN)]
        lines = sum(done.lines for done in self.done.values())
        return Summary(len(self.done), lines, dict(sorted(flags.items())), flagged)


class _ProgressLog:
    """Logs progress, speed and remaining time, at most once every few seconds."""

    def __init__(self, log: Log, total: int, resumed: int) -> None:
        self.log, self.total, self.resumed, self.lines = log, total, resumed, resumed
        self.begin = self.last = time.monotonic()
        log(f"{total:,} lines" + (f", {resumed:,} of them already translated" if resumed else ""))

    def update(self, lines: int, done: int, shards: int) -> None:
        self.lines += lines
        now = time.monotonic()
        if now - self.last < _LOG_SECONDS and self.lines != self.total:
            return
        self.last = now
        speed = (self.lines - self.resumed) / max(now - self.begin, 1e-3)
        left = (self.total - self.lines) / max(speed, 1e-3)
        self.log(
            f"{self.lines:,} of {self.total:,} lines, {done:,} of {shards:,} files, {speed:,.0f} lines/s, "
            + (f"{left / 60:,.0f} min left" if left >= 90 else f"{left:.0f} s left")
        )
