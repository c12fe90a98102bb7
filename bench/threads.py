"""Measure how the native engine scales with threads, compared with independent processes.

    python bench/threads.py --models random-tiny random-base --rounds 9

One thread, T threads, and T processes with 1/T of the sentences each run in turn.  Processes share nothing but the
machine: their distance from T times the speed is due to other users, shared caches and hyper-threads.  Random weights,
int8, targets of 40 tokens.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from decode import LENGTH, SHAPES, VOCABULARIES

from dragoman.config import TransformerConfig
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.pack import pack
from dragoman.decoding.settings import SearchSettings
from dragoman.models.build import build_model

SENTENCES = {"random-tiny": 1000, "random-base": 250}
ALONE = {"random-tiny": 20, "random-base": 6}


def sources(name: str) -> list[list[int]]:
    rng = random.Random(1)
    tokens = range(4, VOCABULARIES[name])
    return [[*rng.choices(tokens, k=rng.randint(4, 39)), 3] for _ in range(SENTENCES[name])]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(name: str, beam: int, threads: int, rounds: int, engine: Engine) -> list[str]:
    """Return rows of the table: sentences one at a time, all at once, and all at once in processes."""
    rows = sources(name)

    def search(batch: list[list[int]], count: int) -> None:
        settings = SearchSettings(beam=beam, min_length=LENGTH - 1)
        engine.search(batch, [LENGTH] * len(batch), settings, threads=count)

    def alone(count: int) -> float:
        return statistics.median(seconds(lambda row=row: search([row], count)) for row in rows[: ALONE[name]])

    def processes() -> None:
        children = []
        for part in range(1, threads):
            children.append(os.fork())
            if children[-1] == 0:
                try:
                    search(rows[part::threads], 1)
                    os._exit(0)
                finally:
                    os._exit(1)
        search(rows[::threads], 1)
        assert all(os.waitpid(child, 0)[1] == 0 for child in children)

    def together(count: int) -> float:
        return seconds(lambda: search(rows, count))

    single = [(alone(1), alone(threads)) for _ in range(rounds)]
    all_at_once = [(together(1), together(threads), seconds(processes)) for _ in range(rounds)]
    return [
        line(f"{name}, one at a time, beam {beam}", single),
        line(f"{name}, all at once, beam {beam}", [(one, more) for one, more, _ in all_at_once]),
        line("all at once, in processes", [(one, apart) for one, _, apart in all_at_once]),
    ]


def line(label: str, pairs: list[tuple[float, float]]) -> str:
    low, middle, high = statistics.quantiles([one / more for one, more in pairs], n=4, method="inclusive")
    return f"| {label} | {middle:.2f} ({low:.2f}-{high:.2f}) |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=["random-tiny"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    print(f"| | {given.threads} threads: speed-up over one thread, median (quartiles) |\n|---|---|")
    for name in given.models:
        size = VOCABULARIES[name]
        with tempfile.TemporaryDirectory() as folder:
            model = build_model(TransformerConfig(**SHAPES[name]), size, size, seed=1).eval()
            engine = Engine(pack(model, Path(folder) / "model.bin", "int8"))
            for beam in (1, 4):
                print(*measure(name, beam, given.threads, given.rounds, engine), sep="\n", flush=True)


if __name__ == "__main__":
    main()
