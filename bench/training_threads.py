"""Measure the speed of training steps with one and several threads, alone and beside other busy processes.

    python bench/training_threads.py CONFIG.toml --threads 1 2 --busy 0 1 2 --rounds 3

Each cell of the table is measured in new processes that make the same steps.  It contains the source + target tokens
per second, the median of the rounds.  Waiting OpenMP threads spin (active), sleep (passive), or spin for some time
before they sleep (default, and the policies with a number of spins).  Hashes of the weights after the steps follow.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from dragoman.config import load_config

POLICIES: dict[str, dict[str, str]] = {
    "default": {},
    "active": {"OMP_WAIT_POLICY": "ACTIVE"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "1000 spins": {"GOMP_SPINCOUNT": "1000"},
    "20000 spins": {"GOMP_SPINCOUNT": "20000"},
}


def steps(config: Path, scratch: Path, threads: int, seconds: float, least: int) -> dict[str, object]:
    """Make training steps for some seconds, at least `least`; return tokens per second and a hash of the weights."""
    import torch

    from dragoman.io.run_log import Reporter
    from dragoman.models.model_folder import unique_tensors
    from dragoman.training.allocator import keep_freed_memory
    from dragoman.training.distributed import DistributedContext
    from dragoman.training.run import open_run
    from dragoman.training.trainer import Trainer

    keep_freed_memory()
    torch.set_num_threads(threads)
    run = open_run(load_config(config), scratch / "run")
    trainer = Trainer(run, DistributedContext("cpu"), Reporter())
    trainer.model.train()
    plan, tokens, digest = run.task.epoch(0), 0, ""
    began = 0.0
    for i, indices in enumerate(plan):
        batches = [trainer.read(indices, i)]
        if i == 2:  # the first steps allocate memory
            began, tokens = time.perf_counter(), 0
        trainer.step(batches)
        tokens += sum(b.src_tokens + b.tgt_tokens for b in batches)
        if i + 1 == least:
            weights = (w.numpy().tobytes() for w in unique_tensors(trainer.model).values())
            digest = hashlib.sha256(b"".join(weights)).hexdigest()[:12]
        if i + 1 >= least and time.perf_counter() - began > seconds:
            break
    trainer.close()
    return {"speed": tokens / (time.perf_counter() - began), "weights": digest}


def compete(count: int) -> list[subprocess.Popen[bytes]]:
    """Start busy processes, each in a new session, like programs in another terminal."""
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(count)]


def measure(given: argparse.Namespace) -> None:
    found: dict[tuple[int, int, str], list[float]] = {}
    weights: dict[int, set[str]] = {}
    for _ in range(given.rounds):
        for busy in given.busy:
            others = compete(busy)
            try:
                for threads in given.threads:
                    for policy in given.policies:
                        row = child(given, threads, policy)
                        found.setdefault((busy, threads, policy), []).append(row["speed"])
                        weights.setdefault(threads, set()).add(row["weights"])
            finally:
                for other in others:
                    other.kill()
                    other.wait()
    print("| busy processes | threads | " + " | ".join(given.policies) + " |")
    print("|---" * (2 + len(given.policies)) + "|")
    for busy in given.busy:
        for threads in given.threads:
            cells = [f"{statistics.median(found[busy, threads, p]):,.0f}" for p in given.policies]
            print(f"| {busy} | {threads} | " + " | ".join(cells) + " |", flush=True)
    for threads, hashes in weights.items():
        print(f"weights after {given.steps} steps with {threads} threads: {', '.join(sorted(hashes))}")


def child(given: argparse.Namespace, threads: int, policy: str) -> dict[str, object]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))} | POLICIES[policy]
    command = [sys.executable, __file__, str(given.config), "--child", str(threads), "--scratch", str(given.scratch)]
    command += ["--steps", str(given.steps), "--seconds", str(given.seconds)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    row: dict[str, object] = json.loads(done.stdout)
    print(f"{threads} threads, {policy}: {row}", file=sys.stderr)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="numbers of other busy processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="per cell")
    parser.add_argument("--steps", type=int, default=6, help="minimum; the weights are compared after it")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/training_threads"), help="folder for prepared data")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(steps(given.config, given.scratch, given.child, given.seconds, given.steps)))
    else:
        measure(given)


if __name__ == "__main__":
    main()
