"""Runs side by side: what differs in their configurations, how they learned, what they cost, how good they became.

Runs that differ only in `train.seed` are one group, with mean and standard deviation over the seeds.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.config import flatten, load_config
from dragoman.errors import DragomanError, UsageError, nearest
from dragoman.evaluation.compare.scores import (
    DecodedScores,
    EvalSet,
    Interval,
    LengthScore,
    read_eval_set,
    score_translations,
)
from dragoman.evaluation.metrics import bleu_tokenizer
from dragoman.io.run_log import read_log
from dragoman.models.model_folder import find_model, list_checkpoints, read_header, read_meta

if TYPE_CHECKING:
    import torch

__all__ = ["ComparedRun", "Curve", "Group", "RunComparison", "Statistic", "compare", "short_names"]

Curve = tuple[tuple[int, float, float], ...]
"""Points of a quantity over training: (step, seconds, value)."""

SEED = "train.seed"
_NO_CURVES = ("step", "seconds", "epoch", "learning_rate", "tokens_per_second", "memory_mb")


@dataclass(frozen=True)
class ComparedRun:
    """One run folder, read.

    config: dotted key -> value.  parameters: numbers in the best checkpoint; None where there is none yet.  seconds: of
    training.  tokens_per_second: median of the log.  memory_mb: peak resident memory.  best_step, scores: of the best
    checkpoint.  curves: the training `loss` and every validation score of the log, without the average's.
    """

    name: str
    folder: str
    config: dict[str, Any]
    parameters: int | None
    steps: int
    seconds: float
    tokens_per_second: float | None
    memory_mb: float | None
    best_step: int | None
    scores: dict[str, float]
    curves: dict[str, Curve]
    test: DecodedScores | None = None

    @property
    def numbers(self) -> dict[str, float | None]:
        """What a table can show, by name: cost, `valid.` scores of the best checkpoint, `test.` scores."""
        cost = ("parameters", "steps", "seconds", "tokens_per_second", "memory_mb", "best_step")
        found: dict[str, float | None] = {name: getattr(self, name) for name in cost}
        found |= {f"valid.{name}": value for name, value in self.scores.items()}
        for name in ("bleu", "chrf") if self.test else ():
            interval: Interval = getattr(self.test, name)
            found |= {f"test.{name}": interval.score, f"test.{name}_half": interval.half}
        return found


@dataclass(frozen=True)
class Statistic:
    """Of the n runs of a group that have the number; std: sample standard deviation, None where n is 1."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Statistic:
        """Of one value or more."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Group:
    """Runs of one configuration, but for the seed.

    differs: what tells it from the other groups, dotted key -> value, without the keys it does not have.
    """

    name: str
    runs: tuple[ComparedRun, ...]
    differs: dict[str, Any]

    @property
    def seeds(self) -> list[int]:
        return [run.config[SEED] for run in self.runs]

    @property
    def numbers(self) -> dict[str, Statistic]:
        """The numbers of its runs (`ComparedRun.numbers`), those that at least one run has."""
        names = dict.fromkeys(name for run in self.runs for name in run.numbers)
        values = {name: [v for run in self.runs if (v := run.numbers.get(name)) is not None] for name in names}
        return {name: Statistic.of(some) for name, some in values.items() if some}

    @property
    def by_length(self) -> tuple[LengthScore, ...]:
        """BLEU by source length, mean over the seeds; so is the width of the interval."""
        rows = zip(*(run.test.by_length for run in self.runs if run.test), strict=True)
        return tuple(
            replace(row[0], bleu=Interval(_mean(one.bleu.score for one in row), _mean(one.bleu.half for one in row)))
            for row in rows
        )


@dataclass(frozen=True)
class RunComparison:
    """The groups, in the order in which their first runs were given.

    differing: the dotted configuration keys (but the seed) in which groups differ.  test: the test set that was
    decoded.  samples: resamples behind its confidence intervals.
    """

    groups: tuple[Group, ...]
    differing: tuple[str, ...]
    test: EvalSet | None = None
    samples: int = 0

    @property
    def runs(self) -> list[ComparedRun]:
        return [run for group in self.groups for run in group.runs]

    def to_json(self) -> dict[str, Any]:
        """All of it but the texts, for `json.dumps`."""
        groups = [
            {
                "name": group.name,
                "seeds": group.seeds,
                "differs": group.differs,
                "numbers": {name: asdict(number) for name, number in group.numbers.items()},
                "runs": [asdict(run) for run in group.runs],
            }
            for group in self.groups
        ]
        test = None
        if self.test is not None:
            test = {"sentences": len(self.test.sources), "unit": self.test.unit, "samples": self.samples}
        return {"differing": list(self.differing), "test": test, "groups": groups}


def compare(
    runs: Sequence[str | Path],
    source: str | Path | None = None,
    reference: str | Path | None = None,
    *,
    device: str | torch.device = "cpu",
    samples: int = 1000,
    tokenize: str = "auto",
    log: Callable[[str], None] = lambda text: None,
) -> RunComparison:
    """Read runs and put them side by side; with `source` and `reference` (text files) decode and score that test set.

    runs: run folders, or folders of run folders.  samples: of the bootstrap.  tokenize: BLEU's
    tokenizer; "auto" chooses it by the runs' `data.target_language`.  log: hears what takes long.
    Raises UsageError with every folder that cannot be compared, DataError for a test set that is misaligned.
    """
    if (source is None) != (reference is None):
        given, missing = ("source", "reference") if reference is None else ("reference", "source")
        raise UsageError(f"{given} = {source or reference} without {missing}: a test set is two files, line by line")
    if source is None and tokenize != "auto":
        raise UsageError(f"tokenize = {tokenize}: only for the BLEU of a test set; give source and reference too")
    if samples < 2:
        raise UsageError(f"samples = {samples}: must be at least 2; 1000 is usual")
    found = _read_runs(runs)
    if source is None or reference is None:
        return _arranged(found)
    tokenize = _tokenizer(found, tokenize)
    test = read_eval_set(Path(source), Path(reference))
    return _arranged([_decoded(run, test, device, samples, tokenize, log) for run in found], test, samples)


# ----------------------------------------------------------------------------------------------------------- reading


def _read_runs(given: Sequence[str | Path]) -> list[ComparedRun]:
    """The runs, named apart.  Raises UsageError with every problem."""
    problems: list[str] = []
    folders: dict[Path, Path] = {}
    for path in map(Path, given):
        inside = _run_folders(path)
        problems += [] if inside else [_no_run(path)]
        for folder in inside:
            if folder.resolve() in folders:
                problems.append(f"{folder}: given twice; name each run once")
            folders[folder.resolve()] = folder
    runs = []
    for folder, name in zip(folders.values(), _names(list(folders)), strict=True):
        try:
            runs.append(_read_run(folder, name))
        except DragomanError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(["these cannot be compared", *(f"  - {problem}" for problem in problems)]))
    if not runs:
        raise UsageError("no runs: give at least one run folder, as 'dragoman train' wrote it")
    return runs


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").is_file() or (folder / "log.jsonl").is_file()


def _run_folders(path: Path) -> list[Path]:
    """The run folder itself, or the run folders in it by name."""
    if _is_run(path):
        return [path]
    return sorted(folder for folder in path.iterdir() if _is_run(folder)) if path.is_dir() else []


def _no_run(path: Path) -> str:
    accepted = "accepted: a run folder, as 'dragoman train' wrote it, or a folder of run folders"
    if not path.exists():
        neighbours = [str(p) for p in path.parent.iterdir()] if path.parent.is_dir() else []
        return f"{path}: no such folder{nearest(str(path), neighbours)}; {accepted}"
    what = "no config.toml or log.jsonl in it or in a folder in it" if path.is_dir() else "a file"
    return f"{path}: no run ({what}); {accepted}"


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as few as tell all of them apart."""
    names: list[str] = []
    whole = [folder.absolute() for folder in folders]
    for parts in range(1, max((len(folder.parts) for folder in whole), default=0) + 1):
        names = ["/".join(folder.parts[-parts:]) for folder in whole]
        if len(set(names)) == len(names):
            break
    return names


def _read_run(folder: Path, name: str) -> ComparedRun:
    config = flatten(load_config(folder / "config.toml", stored=True).model_dump(mode="json"))
    rows = read_log(folder)
    if not rows:
        raise UsageError(f"{folder}: log.jsonl has no row yet; train on with: dragoman train CONFIG --out {folder}")
    best = find_model(folder) if list_checkpoints(folder) or (folder / "best").is_file() else None
    meta = {} if best is None else read_meta(best)
    speeds, memory = _column(rows, "tokens_per_second"), _column(rows, "memory_mb")
    return ComparedRun(
        name=name,
        folder=str(folder),
        config=config,
        parameters=None if best is None else _count_parameters(best / "model.safetensors"),
        steps=int(max(_column(rows, "step"))),
        seconds=max(_column(rows, "seconds"), default=0.0),
        tokens_per_second=statistics.median(speeds) if speeds else None,
        memory_mb=max(memory, default=None),
        best_step=meta.get("step"),
        scores={key: value for key, value in meta.get("scores", {}).items() if _is_number(value)},
        curves=_curves(rows),
    )


def _is_number(value: Any) -> bool:
    # Not math.isfinite, which raises OverflowError for an integer of hundreds of digits.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _column(rows: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if _is_number(row.get(key))]


def _curves(rows: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    curves: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        if "average" in row or not _is_number(row.get("seconds")):
            continue
        for key, value in row.items():
            if key not in _NO_CURVES and _is_number(value):
                curves.setdefault(key, []).append((row["step"], row["seconds"], value))
    return {key: tuple(points) for key, points in curves.items()}


def _count_parameters(path: Path) -> int:
    """From the file's header: no weight is read."""
    return sum(math.prod(about["shape"]) for about in read_header(path).values())


def _tokenizer(runs: Sequence[ComparedRun], tokenize: str) -> str:
    """BLEU's tokenizer for the target language of the runs.  Raises UsageError where they need different ones."""
    languages = {run.name: run.config.get("data.target_language", "") for run in runs}
    tokenizers = {bleu_tokenizer(language, tokenize) for language in languages.values()}
    if len(tokenizers) > 1:
        listed = ", ".join(f"{name}: {language} ({bleu_tokenizer(language)})" for name, language in languages.items())
        raise UsageError(
            f"the target languages of these runs need different tokenizers for BLEU ({listed}); compare runs of one "
            "target language, or name one tokenizer for all: --tokenize 13a (tokenize= in Python)"
        )
    return tokenizers.pop()


def _decoded(
    run: ComparedRun,
    test: EvalSet,
    device: str | torch.device,
    samples: int,
    tokenize: str,
    log: Callable[[str], None],
) -> ComparedRun:
    """The run with the scores of its best checkpoint, decoded with its own [search]."""
    from dragoman.pipelines.translation import Translator  # here, so that comparing logs loads no model

    log(f"{run.name}: translating {len(test.sources):,} lines")
    translations = Translator.load(run.folder, device, quantize="none").translate(test.sources)
    return replace(run, test=score_translations([t.text for t in translations], test, samples, tokenize))


# --------------------------------------------------------------------------------------------------------- arranging


def _arranged(runs: Sequence[ComparedRun], test: EvalSet | None = None, samples: int = 0) -> RunComparison:
    members: dict[str, list[ComparedRun]] = {}
    for run in runs:
        configuration = {key: value for key, value in run.config.items() if key != SEED}
        members.setdefault(json.dumps(configuration, sort_keys=True), []).append(run)
    firsts = [some[0].config for some in members.values()]
    keys = dict.fromkeys(key for config in firsts for key in config if key != SEED)
    absent = object()
    differing = [key for key in keys if any(config.get(key, absent) != firsts[0].get(key, absent) for config in firsts)]
    # What all have says more about a run than the keys that only its own kind has.
    differing.sort(key=lambda key: -sum(key in config for config in firsts))
    groups = [
        Group(name, tuple(some), {key: some[0].config[key] for key in differing if key in some[0].config})
        for name, some in zip(_group_names(list(members.values())), members.values(), strict=True)
    ]
    return RunComparison(tuple(groups), tuple(differing), test, samples)


def _group_names(members: Sequence[Sequence[ComparedRun]]) -> list[str]:
    """What the names of its runs have in common: lstm for lstm-1 and lstm-2; else the name of the first."""
    names = [_in_common([run.name for run in runs]) for runs in members]
    return [name if names.count(name) == 1 else runs[0].name for name, runs in zip(names, members, strict=True)]


def _in_common(names: Sequence[str]) -> str:
    letters = itertools.takewhile(lambda same: len(set(same)) == 1, zip(*names, strict=False))
    start = "".join(same[0] for same in letters)
    if start in names:
        return start
    return re.sub(r"([-_./ ]+(seed|s)?[-_./ ]*\d*|seed\d*)$", "", start) or names[0]


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Configuration keys as people say them, where that tells them apart: model.position.kind -> position."""
    short = {key: key.partition(".")[2].removesuffix(".kind") or key for key in keys}
    return {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
