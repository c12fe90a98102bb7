"""`dragoman clean`: the pairs of a corpus that are fit for training, and the others with the reason for each.

The corpus is read as a stream and cut into segments of a fixed size, which are checked in any process and written to a
working folder; near-duplicates are found among the hashes of all segments.  So the memory does not depend on the size
of the corpus, the result not on the number of processes, and a run that was interrupted continues.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from dragoman._version import __version__
from dragoman.advice.checks import CHECKS, median_ratio, unusual_lengths
from dragoman.advice.diagnosis import LineNumbers
from dragoman.advice.raw_pairs import RawPair, raw_pairs, sample, single_corpus
from dragoman.advice.relatedness import Relatedness
from dragoman.advice.text import check_text_files, detect_languages
from dragoman.cli.console import plain_table, print_table
from dragoman.config import FilterConfig
from dragoman.data.corpus import CorpusSpec, PairFilter, SentencePair, pair_hash
from dragoman.data.languages import LanguageCheck
from dragoman.data.misalignment import CERTAIN_Z
from dragoman.data.store.segments import Processes, find_duplicates
from dragoman.data.words import letters
from dragoman.device import usable_cores
from dragoman.errors import DataError, DragomanError, UsageError, nearest
from dragoman.io.lock import lock_folder
from dragoman.io.reading import read_json
from dragoman.io.writing import atomic_folder, new_folder_problems, write_file, writing

SEGMENT = 1 << 15
"""Pairs per segment."""
REASONS = {
    "row": "a row without two texts", "empty": "a side without text",
    "encoding": "invalid bytes or damaged characters", "markup": "tags", "entities": "HTML entities",
    "repeated": "repeated characters or words", "too_long": "more than 5,000 characters",
    "ratio": "unusual ratio of lengths", "identical": "both sides are the same",
    "language": "a side in another language", "shifted": "the target belongs to a pair nearby",
    "unrelated": "the sides do not translate each other",
    "duplicate": "near-duplicate: the same letters and digits before",
}  # fmt: skip
"""Reasons for which pairs are rejected, in the order in which they are checked."""
_SMALL = 4 << 20  # bytes, for which no processes are started
_HALF, _MANY = 0.5, 0.2


@dataclass
class CleanReport:
    """What was kept and rejected.

    files: the pairs that are kept.  rejected: TSV of the others: reason, place, source, target.  reasons: with the
    numbers of the first lines or units, which noun names.
    """

    files: tuple[Path, Path]
    rejected: Path
    languages: tuple[str | None, str | None]
    noun: str
    read: int = 0
    kept: int = 0
    reasons: dict[str, LineNumbers] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "files": [*map(str, self.files)], "rejected": str(self.rejected)}

    def __str__(self) -> str:
        dropped = "".join(f" + {name} {lines.count:,}" for name, lines in self.reasons.items())
        return f"read {self.read:,} = kept {self.kept:,}{dropped}"


@dataclass(frozen=True)
class _Rules:
    """What segments are checked with.  ratio: median of the logarithms of the ratios of lengths."""

    relatedness: Relatedness
    ratio: float
    checks: tuple[LanguageCheck | None, LanguageCheck | None]
    allowed: frozenset[str]


@dataclass(frozen=True)
class _Task:
    stem: Path
    pairs: Sequence[RawPair]
    rules: _Rules


def clean_corpus(
    source: str | Path,
    target: str | Path | None = None,
    *,
    out: str | Path,
    languages: Sequence[str] | None = None,
    allow: Collection[str] = (),
    workers: int | None = None,
    log: Callable[[str], None] = lambda text: None,
    progress: Callable[[Iterator[int]], Iterator[int]] = iter,
) -> CleanReport:
    """Write the pairs that pass all checks, and the others, into the new folder `out`.

    source, target: as for `plan_training`.  languages: of source and target; default: detected.  allow: reasons (see
    REASONS) for which no pair is rejected.  workers: processes; default: one per core.  progress: wraps the numbers of
    pairs that were read.  An interrupted call with the same arguments continues.  Raises UsageError for invalid
    arguments and an `out` that exists, DataError for files that cannot be read or paired.
    """
    if unknown := sorted(set(allow) - REASONS.keys()):
        raise UsageError(f"allow = {', '.join(unknown)}{nearest(unknown[0], REASONS)}: accepted: {', '.join(REASONS)}")
    folder = Path(out)
    if problems := new_folder_problems(folder):
        raise UsageError(problems[0])
    given = [Path(path) for path in (source, target) if path is not None]
    check_text_files(given)
    spec = single_corpus(given[0], languages, log) if target is None else CorpusSpec(given[0], given[1])
    found = tuple(languages) if languages else detect_languages(spec)
    names = found if None not in found and found[0] != found[1] else ("source", "target")
    files = folder / f"clean.{names[0]}", folder / f"clean.{names[1]}"
    report = CleanReport(files, folder / "rejected.tsv", (found[0], found[1]), spec.noun)
    key, rules = _key(spec, found, allow), _rules(spec, report.languages, allow, log)
    work = folder.with_name(f"{folder.name}.unfinished")
    with writing(work):
        work.mkdir(exist_ok=True)
    with lock_folder(work, f"{work}: this working folder", "wait for it to end", writing(work)), writing(folder):
        _clear(work, key, log)
        for read in progress(_checked(spec, rules, work, workers, log)):
            report.read = read
        _merge(report, work, folder)
    shutil.rmtree(work, ignore_errors=True)
    for reason, lines in report.reasons.items():
        if lines.count > _MANY * report.read:
            share = f"{lines.count / report.read:.0%} of the pairs are rejected"
            log(f"warning: {share}: {REASONS[reason]}; to keep them, add --allow {reason}")
    return report


def _key(spec: CorpusSpec, languages: Sequence[str | None], allow: Collection[str]) -> str:
    """Return a hash of everything that the result depends on; files count by size and time."""
    stats = [(str(path.resolve()), *_stamp(path)) for path in spec.files]
    settings = [__version__, SEGMENT, stats, [spec.source_key, spec.target_key], list(languages), sorted(allow)]
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=8).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}. Give the path of a readable file.") from None
    return found.st_size, found.st_mtime_ns


def _clear(work: Path, key: str, log: Callable[[str], None]) -> None:
    """Remove segments of a run with other data or arguments."""
    done = work / "settings.json"
    with suppress(DragomanError, LookupError):
        if read_json(done, DataError, "")["key"] == key:
            log(f"continuing the interrupted run in {work}")
            return
    for left in work.glob("[0-9]*"):
        left.unlink()
    write_file(done, json.dumps({"key": key}).encode())


def _rules(
    spec: CorpusSpec, languages: tuple[str | None, str | None], allow: Collection[str], log: Callable[[str], None]
) -> _Rules:
    pairs = sample(spec)
    lengths = np.array([[len(one), len(other)] for one, other in pairs], np.int64).reshape(-1, 2)
    checks: list[LanguageCheck | None] = []
    for side, language in enumerate(languages):
        check = None
        if language and "language" not in allow:
            check = LanguageCheck(language, languages[1 - side], identify=True)
            texts = [pair[side] for pair in pairs[:: 1 + len(pairs) // 1000]]
            if sum(map(check.suspicious, texts)) > _HALF * len(texts):
                log(
                    f"warning: more than half of the {('source', 'target')[side]} texts do not look like {language!r}, "
                    "so their language is not checked; if it is wrong, specify it with --languages"
                )
                check = None
        checks.append(check)
    ratio = median_ratio(lengths[:, 0], lengths[:, 1])
    return _Rules(Relatedness(pairs), ratio, (checks[0], checks[1]), frozenset(allow))


def _checked(
    spec: CorpusSpec, rules: _Rules, work: Path, workers: int | None, log: Callable[[str], None]
) -> Iterator[int]:
    """Check the segments that are not checked yet; yield the number of pairs read so far."""
    pairs = raw_pairs(spec, log)

    def tasks() -> Iterator[_Task]:
        number = 0
        while segment := list(islice(pairs, SEGMENT)):
            stem = work / f"{number:06}"
            yield _Task(stem, [] if stem.with_suffix(".json").exists() else segment, rules)
            number += 1

    count = workers or usable_cores()
    if count == 1 or sum(_stamp(path)[0] for path in spec.files) < _SMALL:
        yield from accumulate(map(_check_segment, tasks()))
    else:
        with Processes(count) as processes:
            yield from accumulate(processes.map(_check_segment, tasks()))


def _check_segment(task: _Task) -> int:
    """Write the pairs of a segment, each with its reason, and the hashes of those to keep; return their number.

    The JSON is written last: a segment that has one is complete.
    """
    about = task.stem.with_suffix(".json")
    if about.exists():
        return int(read_json(about, DataError, "")["read"])
    pairs, reasons = task.pairs, _reasons(task.pairs, task.rules)
    kept = (pair for pair, reason in zip(pairs, reasons, strict=True) if not reason)
    sides = ((letters(pair.source, digits=True), letters(pair.target, digits=True)) for pair in kept)
    hashes = np.array([pair_hash(*texts) for texts in sides], np.uint64)
    order = np.argsort(hashes, kind="stable")
    task.stem.with_suffix(".hashes").write_bytes(hashes[order].tobytes() + order.astype(np.uint32).tobytes())
    with task.stem.with_suffix(".pairs").open("w", encoding="utf-8", errors="replace", newline="\n") as file:
        for pair, reason in zip(pairs, reasons, strict=True):
            file.write(f"{reason}\t{pair.number}\t{pair.where}\n{pair.source or pair.problem}\n{pair.target}\n")
    write_file(about, json.dumps({"read": len(pairs), "kept": len(hashes)}).encode())
    return len(pairs)


def _reasons(pairs: Sequence[RawPair], rules: _Rules) -> list[str]:
    """Return the first reason against each pair, or ""."""
    pair_filter = PairFilter(FilterConfig(drop_duplicates=False))
    checks = [(name, check) for name, check in CHECKS.items() if name not in rules.allowed]
    reasons = [_reason(pair, rules, checks, pair_filter) for pair in pairs]
    texts = [i for i, pair in enumerate(pairs) if pair.source and pair.target]
    lengths = np.array([[len(pairs[i].source), len(pairs[i].target)] for i in texts], np.int64).reshape(-1, 2)
    found = {texts[i]: "ratio" for i in np.flatnonzero(unusual_lengths(lengths[:, 0], lengths[:, 1], rules.ratio))}
    for stretch in rules.relatedness.stretches([(pairs[i].source, pairs[i].target) for i in texts]):
        if not 0 < stretch.z < CERTAIN_Z:
            for i in texts[stretch.first : stretch.last + 1]:
                found.setdefault(i, "shifted" if stretch.offset else "unrelated")
    for i, reason in found.items():
        if not reasons[i] and reason not in rules.allowed:
            reasons[i] = reason
    return reasons


def _reason(
    pair: RawPair, rules: _Rules, checks: Sequence[tuple[str, Callable[[str], bool]]], pair_filter: PairFilter
) -> str:
    source, target = pair.source, pair.target
    if pair.problem:
        return "row"
    if not (source and target):
        return "empty"
    for name, check in checks:
        if check(source) or check(target):
            return name
    dropped = pair_filter.judge(SentencePair(source, target, pair.number))
    if not dropped and _has_same_letters(source, target) and len(source.split()) > 2:
        dropped = "identical"
    if dropped and dropped not in rules.allowed:
        return dropped
    sides = zip(rules.checks, (source, target), strict=True)
    return "language" if any(identify and identify.suspicious(text) for identify, text in sides) else ""


def _has_same_letters(source: str, target: str) -> bool:
    """Return whether two texts have the same letters; most differ in the first one, which takes less time to find."""
    first, second = source[0].casefold()[0], target[0].casefold()[0]
    return (first == second or not (first.isalpha() and second.isalpha())) and letters(source) == letters(target)


def _merge(report: CleanReport, work: Path, folder: Path) -> None:
    """Write the result from the segments."""
    stems = [path.with_suffix("") for path in sorted(work.glob("[0-9]*.json"))]
    kept = [int(read_json(stem.with_suffix(".json"), DataError, "")["kept"]) for stem in stems]
    hashed = list(zip(map(str, stems), kept, strict=True))
    duplicates = find_duplicates([], hashed) if stems else []
    counts = {reason: LineNumbers() for reason in REASONS}
    with atomic_folder(folder) as unfinished:
        names = [file.name for file in (*report.files, report.rejected)]
        files = [(unfinished / name).open("w", encoding="utf-8", newline="\n") for name in names]
        for stem, repeated in zip(stems, duplicates, strict=True):
            skipped, position = set(repeated.tolist()), 0
            for head, source, target in _records(stem.with_suffix(".pairs")):
                reason, number, where = head.split("\t", 2)
                if not reason:
                    reason = "duplicate" if position in skipped else ""
                    position += 1
                if reason:
                    counts[reason].add(int(number))
                    columns = (reason, where, source.replace("\t", " "), target.replace("\t", " "))
                    files[2].write("\t".join(columns) + "\n")
                else:
                    report.kept += 1
                    files[0].write(f"{source}\n")
                    files[1].write(f"{target}\n")
        for file in files:
            file.close()
        report.reasons = {reason: lines for reason, lines in counts.items() if lines.count}
        (unfinished / "report.json").write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")


def _records(path: Path) -> Iterator[tuple[str, str, str]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        lines = (line[:-1] for line in file)
        yield from zip(lines, lines, lines, strict=True)


def print_report(report: CleanReport, console: Console) -> None:
    """Print the numbers of pairs by reason, and where the result is."""
    table = plain_table("pairs", "reason", "", left=("reason", ""))
    table.add_row(f"{report.kept:,}", "kept", "")
    for reason, lines in report.reasons.items():
        table.add_row(f"{lines.count:,}", reason, f"{REASONS[reason]} ({lines.named(report.noun)})")
    print_table(console, table)
    for path in (*report.files, report.rejected):
        console.print(Text(str(path)), soft_wrap=True)
