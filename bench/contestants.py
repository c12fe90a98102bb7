"""Processes, tuned settings and measurements of the programs that bench/decode.py compares."""

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

SUBSAMPLING = {"huggingface": 10, "pytorch": 10}
"""Slow programs translate every n-th sentence when all sentences are given at once."""
BATCHES: dict[str, list[Any]] = {
    "ctranslate2": [[8, "examples"], [32, "examples"], [64, "examples"], [128, "examples"], [1024, "tokens"],
                    [4096, "tokens"]],
    "huggingface": [16, 64],
    "pytorch": [1000, 4000],
    "native": [None],
}  # fmt: skip
ENVIRONMENTS = [{}, {"CT2_USE_MKL": "1"}, {"CT2_USE_MKL": "0"}, {"CT2_PACKED_GEMM": "0"}]


@dataclass(frozen=True)
class Question:
    """One measurement of a round: sentences one at a time (`alone`), or all at once."""

    name: str
    alone: bool
    beam: int
    numbers: list[int]


QUESTIONS = [("one at a time, greedy", True, 1), ("one at a time, beam 4", True, 4),
             ("all at once, greedy", False, 1), ("all at once, beam 4", False, 4)]  # fmt: skip


class Process:
    """A running program (bench/decoders.py)."""

    def __init__(self, job: Path, program: str, options: dict[str, Any], variables: dict[str, str]) -> None:
        self.program, threads = program, str(options["threads"])
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, threads) | {"OPENBLAS_NUM_THREADS": "1"} | variables
        command = [sys.executable, str(Path(__file__).with_name("decoders.py")), str(job), program, json.dumps(options)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open while the process runs)
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
        raise SystemExit(f"{self.program} failed:\n{self.errors.read()[-2000:]}")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Contestant:
    """A program with the fastest process and batch setting per question."""

    name: str
    chosen: dict[str, tuple[Process, Any]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def run(self, question: Question) -> None:
        process, batch = self.chosen[question.name]
        answer = process.ask(numbers=self.share(question), beam=question.beam, batch=batch, alone=question.alone)
        self.rounds.setdefault(question.name, []).append(answer)

    def share(self, question: Question) -> list[int]:
        return question.numbers if question.alone else question.numbers[:: SUBSAMPLING.get(program_of(self.name), 1)]

    def speeds(self, question: str) -> list[float]:
        """Return milliseconds per token (one at a time) or tokens per second (all at once) of each round."""
        sums = [(sum(r["seconds"]), sum(r["tokens"])) for r in self.rounds[question]]
        return [1e3 * s / n for s, n in sums] if question.startswith("one") else [n / s for s, n in sums]

    def sentence_milliseconds(self, question: str) -> tuple[float, float]:
        """Return the median and the 99th percentile over all rounds."""
        times = sorted(1e3 * t for answer in self.rounds[question] for t in answer["seconds"])
        return statistics.median(times), times[min(len(times) - 1, round(0.99 * len(times)))]


def program_of(name: str) -> str:
    """native-int8 -> native."""
    return name.partition("-")[0]


@contextlib.contextmanager
def contestant(name: str, job: Path, threads: int, questions: Sequence[Question], quick: bool) -> Iterator[Contestant]:
    """Start a program, tune it on part of the sentences, and keep the best setting per question."""
    program, _, precision = name.partition("-")
    options: dict[str, Any] = {"threads": threads, "precision": precision}
    variants: list[tuple[dict[str, Any], dict[str, str]]] = [(options, {})]
    if program == "ctranslate2":
        splits = [options] if threads == 1 else [options, {**options, "inter": threads}]
        variants = [
            (split, variables) for split in splits for variables in (ENVIRONMENTS[:1] if quick else ENVIRONMENTS)
        ]
    processes = [Process(job, program, *variant) for variant in variants]
    batches = BATCHES[program][:1] if quick else BATCHES[program]
    found = Contestant(name)
    for question in questions:
        process, batch = tuned(processes, batches, question, found.share(question), threads)
        variant, variables = variants[processes.index(process)]
        found.chosen[question.name] = process, batch
        found.settings[question.name] = {"batch": batch, "environment": variables, **variant}
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
    """Return the best setting for a question: all are tried on few sentences, the fastest ones on more."""

    def ranked(tried: list[tuple[Process, Any]], count: int) -> list[tuple[Process, Any]]:
        sample = share[:: max(1, len(share) // count)][:count]

        def seconds(setting: tuple[Process, Any]) -> float:
            process, batch = setting
            request = {"numbers": sample, "beam": question.beam, "batch": batch, "alone": question.alone}
            once = sum(process.ask(**request)["seconds"])
            return float(once if once > 0.5 else min(once, sum(process.ask(**request)["seconds"])))

        return sorted(tried, key=seconds)

    if question.alone:
        few, more, many = 1, 1, 4
        batches = batches[:1]
    else:
        few, more, many = (count * threads for count in (16, 64, 128))
    if len(processes) > 2 and len(batches) > 1:
        # Two batch sizes suffice to rank the kernels; all combinations would take many minutes.
        first = ranked([(process, batch) for process in processes for batch in batches[:2]], few)
        processes = list(dict.fromkeys(process for process, _ in first))[:2]
    tried = [(process, batch) for process in processes for batch in batches]
    if len(tried) > 3:
        tried = ranked(tried, more)[:3]
    return ranked(tried, many if len(tried) > 1 else few)[0]  # with a single setting, this is the warm-up


def start_of(name: str, job: Path, threads: int, numbers: list[int]) -> dict[str, float]:
    """Return the start-up time, the time to the first translation and the peak memory of a new process."""
    program, _, precision = name.partition("-")
    process = Process(job, program, {"threads": threads, "precision": precision}, {})
    batch = BATCHES[program][0]
    first = process.ask(numbers=numbers[:1], beam=1, batch=batch, alone=True)
    peak = process.ask(numbers=numbers[:32], beam=4, batch=batch, alone=False)["peak_mb"]
    process.close()
    return {"ready_s": process.start_seconds, "first_s": process.start_seconds + sum(first["seconds"]), "peak_mb": peak}
