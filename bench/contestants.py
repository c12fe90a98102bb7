"""The programs of bench/decode.py at work: a process for each, the settings that suit it, what it answers."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SLOW = {
    "huggingface": 10,
    "plain": 10,
    "onnxruntime": 4,
}  # one in so many of the sentences that come together is theirs
BATCHES: dict[str, list[Any]] = {
    "ctranslate2": [[8, "examples"], [32, "examples"], [64, "examples"], [128, "examples"], [1024, "tokens"],
                    [4096, "tokens"]],
    "onnxruntime": [16, 32, 64],
    "huggingface": [16, 64],
    "plain": [1000, 4000],
    "ours": [None],
}  # fmt: skip
SWITCHES = [{}, {"CT2_USE_MKL": "1"}, {"CT2_USE_MKL": "0"}, {"CT2_PACKED_GEMM": "0"}]


@dataclass(frozen=True)
class Question:
    """What a program is asked in a round: sentences alone, one after the other, or all of them at once."""

    name: str
    alone: bool
    beam: int
    numbers: list[int]


QUESTIONS = [("one at a time, greedy", True, 1), ("one at a time, beam 4", True, 4),
             ("all at once, greedy", False, 1), ("all at once, beam 4", False, 4)]  # fmt: skip


class Process:
    """A program at work (bench/decoders.py)."""

    def __init__(self, job: Path, program: str, options: dict[str, Any], switches: dict[str, str]) -> None:
        self.program, threads = program, str(options["threads"])
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, threads) | {"OPENBLAS_NUM_THREADS": "1"} | switches
        command = [sys.executable, str(Path(__file__).with_name("decoders.py")), str(job), program, json.dumps(options)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        began = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=environment, text=True
        )
        self._answer()
        self.start_seconds = time.perf_counter() - began

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        self.errors.seek(0)
        raise SystemExit(f"{self.program} ended:\n{self.errors.read()[-2000:]}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Contestant:
    """A program with, for each question, the process and the batch setting that answer it best."""

    name: str
    chosen: dict[str, tuple[Process, Any]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def take(self, question: Question) -> None:
        process, batch = self.chosen[question.name]
        answer = process.ask(numbers=self.share(question), beam=question.beam, batch=batch, alone=question.alone)
        self.rounds.setdefault(question.name, []).append(answer)

    def share(self, question: Question) -> list[int]:
        return question.numbers if question.alone else question.numbers[:: SLOW.get(program_of(self.name), 1)]

    def speeds(self, question: str) -> list[float]:
        """Of each round: milliseconds a token where sentences come alone, else tokens a second."""
        sums = [(sum(r["seconds"]), sum(r["tokens"])) for r in self.rounds[question]]
        return [1e3 * s / n for s, n in sums] if question.startswith("one") else [n / s for s, n in sums]

    def sentence_milliseconds(self, question: str) -> tuple[float, float]:
        """The median and the 99th percentile over all rounds."""
        times = sorted(1e3 * t for answer in self.rounds[question] for t in answer["seconds"])
        return statistics.median(times), times[min(len(times) - 1, round(0.99 * len(times)))]


def program_of(name: str) -> str:
    """ours-int8 -> ours."""
    return name.partition("-")[0]


@contextlib.contextmanager
def contestant(name: str, job: Path, threads: int, questions: Sequence[Question], quick: bool) -> Iterator[Contestant]:
    """Start a program, try its settings on part of the sentences, keep the best of each question."""
    program, _, precision = name.partition("-")
    options: dict[str, Any] = {"threads": threads, "precision": precision}
    variants: list[tuple[dict[str, Any], dict[str, str]]] = [(options, {})]
    if program == "ctranslate2":
        splits = [options] if threads == 1 else [options, {**options, "inter": threads}]
        variants = [(split, switches) for split in splits for switches in (SWITCHES[:1] if quick else SWITCHES)]
    processes = [Process(job, program, own, switches) for own, switches in variants]
    batches = BATCHES[program][:1] if quick else BATCHES[program]
    found = Contestant(name)
    for question in questions:
        process, batch = tuned(processes, batches, question, found.share(question), threads)
        own, switches = variants[processes.index(process)]
        found.chosen[question.name] = process, batch
        found.settings[question.name] = {"batch": batch, "switches": switches, **own}
    used = [process for process, _ in found.chosen.values()]
    for process in processes:
        if process not in used:
            process.close()
    yield found
    for process in {id(process): process for process in used}.values():
        process.close()


def tuned(
    processes: Sequence[Process], batches: Sequence[Any], question: Question, share: list[int], threads: int
) -> tuple[Process, Any]:
    """The best setting of a question: all are tried on a few sentences, those that do well on more."""

    def ranked(tried: list[tuple[Process, Any]], count: int) -> list[tuple[Process, Any]]:
        some = share[:: max(1, len(share) // count)][:count]

        def seconds(setting: tuple[Process, Any]) -> float:
            process, batch = setting
            request = {"numbers": some, "beam": question.beam, "batch": batch, "alone": question.alone}
            once = sum(process.ask(**request)["seconds"])
            return float(once if once > 0.5 else min(once, sum(process.ask(**request)["seconds"])))

        return sorted(tried, key=seconds)

    if question.alone:
        few, some, many = 1, 1, 4
        batches = batches[:1]
    else:
        few, some, many = (count * threads for count in (16, 64, 128))
    if len(processes) > 2 and len(batches) > 1:
        # A small batch and one of some size tell kernels apart; all sizes with all of them would take many minutes.
        first = ranked([(process, batch) for process in processes for batch in batches[:2]], few)
        processes = list(dict.fromkeys(process for process, _ in first))[:2]
    tried = [(process, batch) for process in processes for batch in batches]
    if len(tried) > 3:
        tried = ranked(tried, some)[:3]
    return ranked(tried, many if len(tried) > 1 else few)[0]  # who has no choice only warms up


def start_of(name: str, job: Path, threads: int, numbers: list[int]) -> dict[str, float]:
    """Seconds from nothing to the first translation, and peak memory after a few more, in a fresh process."""
    program, _, precision = name.partition("-")
    process = Process(job, program, {"threads": threads, "precision": precision}, {})
    batch = BATCHES[program][0]
    first = process.ask(numbers=numbers[:1], beam=1, batch=batch, alone=True)
    peak = process.ask(numbers=numbers[:32], beam=4, batch=batch, alone=False)["peak_mb"]
    process.close()
    return {"ready_s": process.start_seconds, "first_s": process.start_seconds + sum(first["seconds"]), "peak_mb": peak}
