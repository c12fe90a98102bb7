"""Measure the speed and memory of training steps on a CPU with batches of different sizes.

    python bench/batch_size.py CONFIG.toml [key=value ...] --tokens 512 1024 2048 4096 8192 --rounds 3

Each cell is measured in a new process with one thread.  speed: source + target tokens per second of processor time, the
median of the rounds.  peak: memory of the largest batch of the epoch beyond that of the model, its gradients and the
state of the optimizer.  kept: bytes of the tensors that this batch keeps for its backward pass.
`training/batch_size.py` uses the ratio of peak and kept.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dragoman.config import load_config


def measure(config: Path, overrides: list[str], scratch: Path, tokens: int, seconds: float) -> dict[str, float]:
    """Return the speed of steps, and the peak and kept memory of the largest batch in bytes."""
    import torch

    from dragoman.io.run_log import Reporter
    from dragoman.training.batch_size import filled, kept_bytes
    from dragoman.training.distributed import DistributedContext
    from dragoman.training.run import open_run
    from dragoman.training.trainer import Trainer

    torch.set_num_threads(1)
    run = open_run(load_config(config, [*overrides, f"train.batch_tokens={tokens}"]), scratch / str(tokens))
    trainer = Trainer(run, DistributedContext("cpu"), Reporter())
    trainer.log.close()
    trainer.model.train()
    plan, counted, began = run.task.epoch(0), 0, 0.0
    small = trainer.read(plan[0][:1], 0)
    trainer.step([small])  # allocates the state of the optimizer
    trainer.training_step.trial(small, 0)
    for parameter in trainer.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batch = filled(trainer.read(max(plan, key=len), 0), tokens)
    trainer.training_step.trial(batch, 0)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    kept = kept_bytes(trainer.training_step, batch)
    for i, indices in enumerate(plan):
        batches = [trainer.read(indices, i)]
        if i == 2:
            began, counted = time.process_time(), 0
        trainer.step(batches)
        counted += sum(b.src_tokens + b.tgt_tokens for b in batches)
        if i > 2 and time.process_time() - began > seconds:
            break
    return {"speed": counted / (time.process_time() - began), "peak": peak, "kept": kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.config, given.overrides, given.scratch, given.child, given.seconds)))
        return
    found: dict[int, list[dict[str, float]]] = {tokens: [] for tokens in given.tokens}
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(given.rounds):
            for tokens in given.tokens:
                arguments = [str(given.config), *given.overrides, "--scratch", scratch, "--child", str(tokens)]
                command = [sys.executable, __file__, *arguments, "--seconds", str(given.seconds)]
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                found[tokens].append(json.loads(out.stdout.splitlines()[-1]))
    print("| tokens | speed | peak MB | kept MB | peak / kept |\n|---|---|---|---|---|")
    for tokens, rows in found.items():
        speed, peak, kept = (statistics.median(row[key] for row in rows) for key in ("speed", "peak", "kept"))
        print(f"| {tokens:,} | {speed:,.0f} | {peak / 1e6:,.0f} | {kept / 1e6:,.0f} | {peak / kept:.2f} |")


if __name__ == "__main__":
    main()
