"""Measure the memory and speed of a training whose processes have copies of the weights, and parts of them.

    python bench/sharded.py --processes 2 --d-model 1024 --layers 12 --steps 4

Trains a decoder-only model on random tokens, without data, validation and checkpoints, in processes with one thread
each.  Prints for each kind of train.parallel the largest resident memory of a process after its first step, the peak
since its start, and the median seconds per step.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path


def measure(kind: str, d_model: int, layers: int, steps: int) -> None:
    """Train in this process, which belongs to a group, and print the measurements."""
    import torch
    from pydantic import TypeAdapter

    from dragoman.config import ModelConfig, TrainConfig
    from dragoman.data.batching import Batch
    from dragoman.models.build import build_model
    from dragoman.training.allocator import keep_freed_memory, return_freed_memory
    from dragoman.training.distributed import open_context
    from dragoman.training.sharded import build_step

    torch.set_num_threads(1)
    (return_freed_memory if kind == "fsdp" else keep_freed_memory)()
    sizes = {"d_model": d_model, "d_ff": 4 * d_model, "n_heads": 8, "n_layers": layers}
    document = {"architecture": "decoder_only", **sizes, "dropout": 0.0}
    model = TypeAdapter(ModelConfig).validate_python(document)
    train = TrainConfig.model_validate({"parallel": {"kind": kind}, "ema": 0.999, "clip_norm": 1.0})
    with open_context("cpu") as context:
        context.connect(600)
        step = build_step(train, lambda: build_model(model, 8000, 8000), context)
        seconds = []
        for number in range(steps):
            began = time.perf_counter()
            tokens = torch.randint(4, 8000, (4, 65), generator=torch.Generator().manual_seed(number))
            empty = tokens[:, :0]
            batch = Batch(empty, None, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), 0, 256)
            step.backward([batch], number, 1 / (256 * context.size))
            step.update(number + 1, 1e-4)
            seconds.append(time.perf_counter() - began)
        status = Path("/proc/self/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        found = context.gather((resident * 1024, context.peak_memory(), statistics.median(seconds[1:])))
        parameters = sum(p.numel() for p in step.model.parameters())
    if context.is_main:
        print(json.dumps([parameters, *map(max, zip(*found, strict=True))]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--d-model", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kind:
        measure(given.kind, given.d_model, given.layers, given.steps)
        return
    print(f"{'kind':12} {'parameters':>12} {'resident MB':>12} {'peak MB':>9} {'s/step':>7}")
    for kind in ("replicated", "fsdp"):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1])}
        shared |= {"WORLD_SIZE": str(given.processes), "LOCAL_WORLD_SIZE": str(given.processes), "OMP_NUM_THREADS": "1"}
        processes = []
        for rank in range(given.processes):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, __file__, *sys.argv[1:], "--kind", kind]
            processes.append(
                subprocess.Popen(command, env=os.environ | shared | own, stdout=subprocess.PIPE, text=True)
            )
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit(f"a process of kind {kind} failed")
        parameters, resident, peak, seconds = json.loads(outputs[0].splitlines()[-1])
        print(f"{kind:12} {parameters:12,} {resident / 1e6:12,.0f} {peak / 1e6:9,.0f} {seconds:7.2f}")


if __name__ == "__main__":
    main()
