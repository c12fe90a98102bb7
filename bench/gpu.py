"""Check and measure what Dragoman does on a GPU, in one run of a few minutes.

    python bench/gpu.py                      # all sections
    python bench/gpu.py kernels train        # some of them
    DRAGOMAN_DATA=corpora python bench/gpu.py recipe --minutes 2

kernels   the time of attention beside that of PyTorch; pytest tests/parity/test_cuda_kernels.py checks the kernels
captured  steps as CUDA graphs: the same bits as without a graph, and the loss beside that of the plain path
train     source + target tokens per second of recipes/multi30k.toml, base and big (Multi30k)
profile   the kernels of a step of the size big
recipe    recipes/multi30k-tiny.toml from start to end, validations included

Sentences of Multi30k; steps after the second epoch, when all graphs are captured.
Utilization is that of `bench/train.py`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from train import PEAKS, flops
from train import document as train_document

from dragoman.config import load_config, parse_config
from dragoman.io.run_log import Reporter, Status
from dragoman.models.model_folder import unique_tensors
from dragoman.training import captured, trainer
from dragoman.training.batch_stream import BatchStream
from dragoman.training.distributed import open_context
from dragoman.training.run import open_run
from dragoman.training.sharded import build_step
from dragoman.training.trainer import train

ROOT = Path(__file__).resolve().parents[1]
DATA = os.environ.get("DRAGOMAN_DATA", str(ROOT.parent / "shared" / "data"))


show = partial(print, flush=True)


def document(size: str, tokens: int, precision: str, **options: Any) -> dict[str, Any]:
    """Return the configuration of `bench/train.py`, with DATA and without a limit of threads."""
    of_train = {"size": size, "tokens": tokens, "precision": precision, "device": "cuda", "threads": "auto"}
    found = train_document({**of_train, "warmup": 20, "steps": 20})
    found["data"]["root"] = DATA
    found["train"].update(options)
    return found


def kernels() -> None:
    """Print the time of attention, forward and backward, without the host."""
    from torch.nn import functional as F
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    from dragoman.nn.fast.cuda.layers import attend

    for length, sentences in ((16, 1560), (32, 780), (64, 390), (128, 195)):
        x = torch.randn(sentences, length, 3 * 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        mask = torch.zeros(sentences, 1, 1, length, device="cuda", dtype=torch.bfloat16)
        times = []
        for kernel in (partial(attend, causal=False), F.scaled_dot_product_attention):
            with record(activities=[ProfilerActivity.CUDA]) as recorded:
                for _ in range(5):
                    q, k, v = (t.view(*t.shape[:2], 16, 64).transpose(1, 2) for t in x.split(1024, 2))
                    out = kernel(q, k, v, mask)
                    out.backward(out.detach())
                torch.cuda.synchronize()
            times.append(sum(e.device_time_total for e in recorded.key_averages()) / 5e3)
        show(f"attention {sentences} x {length} (big, bf16), on the device: {times[0]:.2f} ms, PyTorch {times[1]:.2f}")


class Complete(Exception):
    pass


def speed(name: str, config: Any, folder: Path, size: str | None, warmup: int, seconds: float) -> None:
    """Train for some seconds after `warmup` steps; print tokens per second, and the time to the first reported step."""
    marks: list[tuple[float, int]] = []
    began = time.perf_counter()
    steps: list[Any] = []

    class Listener(Reporter):
        def log(self, message: str) -> None:
            if "captured" in message:
                show("   ", message)

        def progressed(self, status: Status) -> None:
            torch.cuda.synchronize()
            marks.append((time.perf_counter(), status.step))
            warm = [mark for mark in marks if mark[1] >= warmup]
            if warm and time.perf_counter() - warm[0][0] > seconds:
                raise Complete

    class Counted(BatchStream):
        def group(self, progress: Any) -> Any:
            group = super().group(progress)
            steps.append(group.batches[0])
            return group

    own, trainer.BatchStream = trainer.BatchStream, Counted
    torch.cuda.reset_peak_memory_stats()
    try:
        with tempfile.TemporaryDirectory(dir=folder) as out, suppress(Complete):
            train(config, Path(out), reporter=Listener())
    finally:
        trainer.BatchStream = own
    (t0, s0), (t1, s1) = next(mark for mark in marks if mark[1] >= warmup), marks[-1]
    tokens = sum(b.src_tokens + b.tgt_tokens for b in steps[s0:s1])
    line = f"{name:44s} {tokens / (t1 - t0):11,.0f} tokens/s  {(t1 - t0) / (s1 - s0) * 1e3:7.2f} ms/step"
    if size is not None:
        work = sum(flops(size, b) for b in steps[s0:s1]) / (t1 - t0)
        peak = next((p for gpu, p in PEAKS.items() if gpu in torch.cuda.get_device_name()), math.nan)
        line += f"  {work / peak / 1e12:6.1%}"
    gibibytes = torch.cuda.max_memory_allocated() / 2**30
    show(f"{line}  first steps after {marks[0][0] - began:.1f} s, warm after {t0 - began:.1f} s, {gibibytes:.1f} GiB")


def training(folder: Path, seconds: float) -> None:
    recipe = [
        f"data.root={DATA}", "train.device=cuda", "train.budget=1000000 steps", "train.validate_every=1000000 steps",
        "train.schedule.kind=constant", "train.save_every=1000000 steps", "train.average=0",
    ]  # fmt: skip
    for name, size, tokens, warmup in (
        ("multi30k.toml", None, 0, 660), ("base", "base", 25_000, 90), ("big", "big", 50_000, 50)
    ):  # fmt: skip
        with guard(name):
            if size is None:
                config = load_config(ROOT / "recipes" / name, recipe)
            else:
                config = parse_config(document(size, tokens, "bf16"))
            speed(name, config, folder, size, warmup, seconds)
        torch.cuda.empty_cache()


def equality(folder: Path) -> None:
    """Compare weights after some steps with and without graphs, and the losses with the plain path."""
    for precision in ("float32", "bf16"):
        results: dict[str, Any] = {}
        for kind in ("graphs", "no graphs", "plain")[: 3 if precision == "bf16" else 2]:
            config = parse_config(document("tiny", 4096, precision, cuda_graphs="off" if kind == "plain" else "auto"))
            run = open_run(config, folder / f"{precision}-{kind.replace(' ', '-')}", Reporter())
            with open_context("cuda") as context:
                step = build_step(config.train, run.new_model, context, partial(run.new_model, is_first=True))
                run.task.grid = True
                if isinstance(step, captured.CapturedStep):
                    step.batch_tokens, step.padded, step._most = 4096, True, 0 if kind == "no graphs" else 64
                losses, replayed = [], 0
                step.model.train()
                batches = [b for epoch in range(2) for b in enumerate(run.task.epoch(epoch)[:40])]
                for number, (index, indices) in enumerate(batches):
                    batch = step.placed(step.prepared(run.task.read(indices, 0, index)))
                    gradients, _ = step.run([batch], number, 1 / batch.tgt_tokens, 5e-4)
                    losses.append(float(gradients.nll) / batch.tgt_tokens)
                if isinstance(step, captured.CapturedStep):
                    replayed = sum(s.replay is not None for s in step._shapes.values())
                results[kind] = {k: v.clone() for k, v in unique_tensors(step.model).items()}, losses
                show(f"{precision} {kind}: {replayed} graphs, loss {losses[0]:.4f} -> {sum(losses[-10:]) / 10:.4f}")
        first, second = results["graphs"][0], results["no graphs"][0]
        same = sum(bool(torch.equal(first[name], second[name])) for name in first)
        show(f"{precision}: weights with and without graphs equal in {same} of {len(first)} tensors")


def profile(folder: Path) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    config = parse_config(document("big", 50_000, "bf16"))
    run = open_run(config, folder / "profile", Reporter())
    with open_context("cuda") as context:
        step = build_step(config.train, run.new_model, context, partial(run.new_model, is_first=True))
        run.task.grid = True
        assert isinstance(step, captured.CapturedStep)
        step.batch_tokens, step.padded = 50_000, True
        step._most = 0
        batch = step.prepared(run.task.read(run.task.epoch(0)[5], 0, 5))
        for number in range(3):
            step.run([batch], number, 1e-4, 1e-4)
        torch.cuda.synchronize()
        with record(activities=[ProfilerActivity.CUDA]) as recorded:
            for number in range(3):
                step.run([batch], number, 1e-4, 1e-4)
            torch.cuda.synchronize()
        events = sorted(recorded.key_averages(), key=lambda e: -e.device_time_total)
        total = sum(e.device_time_total for e in events)
        show(f"shape {tuple(batch.src.shape)}, {tuple(batch.tgt_out.shape)}: {total / 3e3:.1f} ms of kernels per step")
        for event in events[:22]:
            show(f"  {event.device_time_total / total:6.1%} {event.count // 3:5d} x  {event.key[:110]}")


def recipe(folder: Path, minutes: float) -> None:
    began = time.perf_counter()

    class Listener(Reporter):
        def log(self, message: str) -> None:
            show("   ", message)

        def validated(self, row: dict[str, Any], better: bool) -> None:
            if row.get("epoch", 0) % 10 < 1.01 or "average" in row:
                show(f"   {time.perf_counter() - began:6.1f} s", {k: v for k, v in row.items() if k != "memory_mb"})
            if time.perf_counter() - began > 60 * minutes:
                raise Complete

    config = load_config(ROOT / "recipes" / "multi30k-tiny.toml", [f"data.root={DATA}", "train.device=cuda"])
    with suppress(Complete):
        result = train(config, folder / "recipe", reporter=Listener())
        show(f"recipe multi30k-tiny: {time.perf_counter() - began:.1f} s, {result.epochs:.0f} epochs, {result.scores}")


class guard:
    """Prints an error of a section, so that the others still run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        show(f"--- {self.name}")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, Exception):
            traceback.print_exc(limit=-8, file=sys.stdout)
            show(f"!!! {self.name}: {error}")
        return isinstance(error, Exception)


def main() -> None:
    sections = ("kernels", "captured", "train", "profile", "recipe")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=sections, choices=sections)
    parser.add_argument("--seconds", type=float, default=5, help="of training per measurement")
    parser.add_argument("--minutes", type=float, default=4, help="limit of the recipe")
    options = parser.parse_args()
    show(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        work = {
            "kernels": kernels, "captured": lambda: equality(folder),
            "train": lambda: training(folder, options.seconds), "profile": lambda: profile(folder),
            "recipe": lambda: recipe(folder, options.minutes),
        }  # fmt: skip
        for name in options.sections:
            with guard(name):
                work[name]()
            show(f"    ({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
