"""Measure training by several processes on one computer: one process, N processes of one training, N trainings.

    python bench/processes.py CONFIG.toml
    python bench/processes.py CONFIG.toml model.d_model=256 --processes 4 --rounds 5

Each process has one thread.  The three take turns, --rounds times; the table gives medians of source + target tokens
per second without padding (the sum for N trainings) and ratios to one process.  N independent trainings show what the
computer permits: cores share caches, memory and power.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path


def measure(config: str, overrides: list[str], run: str, warmup: int, steps: int) -> None:
    """Train for some steps and print the tokens per second of all processes of the training."""
    import torch

    from dragoman.config import load_config
    from dragoman.io.run_log import Reporter, Status
    from dragoman.training.trainer import train

    torch.set_num_threads(1)
    times: dict[int, float] = {}

    class Listener(Reporter):
        def progressed(self, status: Status) -> None:
            times[status.step] = time.perf_counter()

    last = warmup + steps
    fixed = [f"train.budget={last} steps", f"train.validate_every={last} steps", "train.log_every=1", "train.threads=1"]
    fixed += ["train.average=0", "train.schedule.warmup=1"]
    result = train(load_config(Path(config), [*overrides, *fixed]), run, reporter=Listener())
    if times:
        rows = [json.loads(line) for line in (Path(run) / "log.jsonl").read_text().splitlines()]
        speeds = {row["step"]: row["tokens_per_second"] for row in rows if "tokens_per_second" in row}
        before = {step: times[step] - times[step - 1] for step in range(warmup + 1, last + 1)}
        tokens = sum(speeds[step] * seconds for step, seconds in before.items())
        print(json.dumps({"tokens_per_second": tokens / sum(before.values()), "steps": result.progress.step}))


def start(size: int, arguments: list[str]) -> list[subprocess.Popen[str]]:
    """Start the processes of one training."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    processes = []
    for rank in range(size):
        own = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        if size > 1:
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "RANK": str(rank)}
            own |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
        command = [sys.executable, __file__, "one", *arguments]
        processes.append(subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True))
    return processes


def speed(groups: list[list[subprocess.Popen[str]]]) -> float:
    """Wait for some trainings; return the sum of their speeds."""
    total = 0.0
    for group in groups:
        for process in group:
            out, _ = process.communicate()
            if process.returncode:
                raise SystemExit(f"a training failed with exit code {process.returncode}")
            with suppress(IndexError):
                total += json.loads(out.splitlines()[-1])["tokens_per_second"]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", help="key=value")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    size = args.processes
    names = ["one process", f"{size} processes", f"{size} independent trainings"]
    results: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        settings = json.dumps([args.config, args.overrides, args.warmup, args.steps])
        for round_ in range(args.rounds):

            def arguments(name: str, round_: int = round_) -> list[str]:
                return [settings, f"{folder}/{name}-{round_}"]

            results[names[0]].append(speed([start(1, arguments("one"))]))
            results[names[1]].append(speed([start(size, arguments("together"))]))
            results[names[2]].append(speed([start(1, arguments(f"alone{i}")) for i in range(size)]))
            print(f"round {round_ + 1}: {', '.join(f'{rows[-1]:,.0f}' for rows in results.values())}", file=sys.stderr)
    from recipes import processor

    print(f"{processor()}, {args.rounds} rounds, one thread per process\n\n| | tokens/s | ratio |\n|---|---|---|")
    for name, rows in results.items():
        ratio = statistics.median(row / one for row, one in zip(rows, results[names[0]], strict=True))
        print(f"| {name} | {statistics.median(rows):,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        config_, overrides_, warmup_, steps_ = json.loads(sys.argv[2])
        measure(config_, overrides_, sys.argv[3], warmup_, steps_)
    else:
        main()
