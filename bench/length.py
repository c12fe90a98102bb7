"""Cost of length: softmax against linear attention, and recurrent networks against Transformers in training.

    python bench/length.py [--threads 2] [--up-to 8192] [--plot FILE.svg]

Attention: one layer (d_model 128, 4 heads) on one sequence; milliseconds and peak memory of a forward pass, and of a
forward and a backward pass.  The explicit softmax holds its weights, T x T per head; the fused kernel does not; linear
attention has no such weights.

Training: milliseconds per step on 4,096 tokens, from 256 sequences of 16 to one of 4,096, on one thread and on all.
The stacks have the same number of weights (three LSTM layers, two Transformer layers, two with linear attention), so
every row of the table has the same work in products with weights; what changes is how much of it is sequential.  An
LSTM takes T sequential steps of N = 4,096 / T rows: with many rows a step fills a core; with few, most of a step is
overhead, which more threads cannot share.  The Transformer has no sequential steps, but its scores grow with T; linear
attention has neither cost.  Compare how each column grows and what the second thread gains, not single rows.

Every number comes from its own process (Linux), so that peaks are independent; a time is the median of the rounds
within one second, at least three.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.nn.attention import SelfAttention, Span
from dragoman.nn.layers import EncoderLayer, FeedForward, SubLayer
from dragoman.nn.linear_attention import LinearSelfAttention
from dragoman.nn.positions import Positions
from dragoman.pages.charts import MARKERS, drawing, format_axis, series_color, standalone

D, HEADS, TOKENS = 128, 4, 4096
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
STEP_LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
HELD_UP_TO = 4096
"""The longest sequence whose weights are held: 256 MiB per copy, of which training needs several."""
ATTENTIONS = ("softmax, written out", "softmax, fused", "linear", "linear, causal")
STACKS = ("LSTM", "Transformer", "linear Transformer")

Point = dict[str, float]

# ------------------------------------------------------------------------------------------------- one measurement


def peak() -> float:
    """Return the peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def median_ms(function: Callable[[], object]) -> float:
    times: list[float] = []
    while len(times) < 3 or sum(times) < 1:
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def attention_point(way: str, length: int) -> Point:
    """Return milliseconds and MiB of one attention layer at one length."""
    kind = LinearSelfAttention(D, HEADS, "elu") if way.startswith("linear") else SelfAttention(D, HEADS)
    if way.endswith("written out"):
        kind.weights.register_forward_hook(lambda module, inputs, output: None)

    def forward(x: Tensor) -> Tensor:
        out: Tensor = kind(x, Positions(), torch.arange(x.size(1)), None, way.endswith("causal"))
        return out

    def inference(x: Tensor) -> None:
        with torch.no_grad():
            forward(x)

    def training(x: Tensor) -> None:
        forward(x).sum().backward()

    x = torch.randn(1, length, D, requires_grad=True)
    training(x[:, :16])  # loads kernels and threads before the first reading of the memory
    before = peak()
    point: Point = {}
    for name, run in (("forward", inference), ("both", training)):
        run(x)
        point[f"{name}_mib"] = peak() - before
        point[f"{name}_ms"] = median_ms(lambda run=run: run(x))  # type: ignore[misc]
    return point


class Stack(nn.Module):
    """Causal Transformer layers, pre-norm."""

    def __init__(self, attention: Callable[[], SelfAttention | LinearSelfAttention], layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(attention(), FeedForward(D, 4 * D, "relu"), lambda: SubLayer(nn.LayerNorm(D), 0.0, "pre"))
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        pos = torch.arange(x.size(1))
        for layer in self.layers:
            x = layer(x, Span(Positions(), pos, causal=True))
        return x, None


def step_point(way: str, length: int) -> Point:
    """Return milliseconds per training step on TOKENS tokens in sequences of `length`."""
    stack: nn.Module
    if way == "LSTM":
        stack = nn.LSTM(D, D, num_layers=3, batch_first=True)
    elif way == "Transformer":
        stack = Stack(lambda: SelfAttention(D, HEADS), 2)
    else:
        stack = Stack(lambda: LinearSelfAttention(D, HEADS, "elu"), 2)
    optimizer = torch.optim.Adam(stack.parameters())
    x, y = torch.randn(2, TOKENS // length, length, D)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (stack(x)[0] - y).square().mean().backward()
        optimizer.step()

    step()
    return {"ms": median_ms(step), "parameters": sum(p.numel() for p in stack.parameters())}


def measure_in_process(what: str, way: str, length: int, threads: int) -> Point:
    """Measure a point in its own process."""
    command = [sys.executable, __file__, "--threads", str(threads), "--point", what, way, str(length)]
    point: Point = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return point


# ----------------------------------------------------------------------------------------------------------- tables

Table = dict[str, dict[int, Point]]


def measure_attention(up_to: int, threads: int) -> Table:
    table: Table = {way: {} for way in ATTENTIONS}
    print(f"one attention layer, d_model {D}, {HEADS} heads: milliseconds / peak MiB\n")
    print(f"{'length':>7}  {'':20}  {'forward':>18}  {'forward, backward':>18}")
    for length in (n for n in LENGTHS if n <= up_to):
        for way in ATTENTIONS:
            if way.endswith("written out") and length > HELD_UP_TO:
                continue
            p = table[way][length] = measure_in_process("attention", way, length, threads)
            forward = f"{p['forward_ms']:.1f} / {p['forward_mib']:.1f}"
            both = f"{p['both_ms']:.1f} / {p['both_mib']:.1f}"
            print(f"{length:7}  {way:20}  {forward:>18}  {both:>18}", flush=True)
    return table


def measure_steps(up_to: int, threads: int) -> Table:
    """Measure milliseconds on all `threads` (`ms`) and on one (`one_ms`)."""
    table: Table = {way: {} for way in STACKS}
    print(f"\na training step of {TOKENS:,} tokens: milliseconds on 1 thread / on {threads} (speed-up)\n")
    print(f"{'length':>7}{'rows':>6}" + "".join(f"{way:>26}" for way in STACKS))
    for length in (n for n in STEP_LENGTHS if n <= up_to):
        cells = []
        for way in STACKS:
            one = measure_in_process("step", way, length, 1)
            point = one if threads == 1 else measure_in_process("step", way, length, threads)
            table[way][length] = point | {"one_ms": one["ms"]}
            cells.append(f"{one['ms']:.1f} / {point['ms']:.1f} ({one['ms'] / point['ms']:.2f})")
        print(f"{length:7}{TOKENS // length:6}" + "".join(f"{cell:>26}" for cell in cells), flush=True)
    print(f"\nratio of the times at the largest and the smallest length, on 1 thread / on {threads}; weights")
    for way, row in table.items():
        smallest, largest = row[min(row)], row[max(row)]
        growth = " / ".join(f"{largest[key] / smallest[key]:.1f}" for key in ("one_ms", "ms"))
        print(f"{way:20}{growth:>16}{smallest['parameters']:12,.0f}")
    return table


# ------------------------------------------------------------------------------------------------------------ plots


def write_plot(path: Path, attention: Table, steps: Table) -> None:
    """Draw the three panels as an SVG file; both axes are logarithmic."""
    panels = (
        ("Attention, forward and backward, ms", attention, "both_ms"),
        ("Attention, peak memory, MiB", attention, "both_mib"),
        (f"Training step of {TOKENS:,} tokens, ms", steps, "ms"),
    )
    with drawing("length", width=1100, height=380, panels=len(panels)) as chart:
        chart.figure.set_layout_engine("constrained")
        for axes, (title, table, key) in zip(chart.panels, panels, strict=True):
            for i, (name, row) in enumerate(table.items()):
                points = [(n, point[key]) for n, point in row.items() if point[key] >= 0.1]  # less was not measurable
                axes.plot(*zip(*points, strict=True), MARKERS[i] + "-", color=series_color(i), label=name)
            axes.set(xscale="log", yscale="log", title=title, xlabel="length in tokens")
            lengths = sorted({n for row in table.values() for n in row})
            axes.set_xticks(lengths, [str(n) for n in lengths], rotation=45)
            axes.set_xticks([], minor=True)
            format_axis(axes.yaxis)
            axes.legend(frameon=False, fontsize=11)
        path.write_text(standalone(chart.svg()), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--up-to", type=int, default=LENGTHS[-1], metavar="TOKENS")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    parser.add_argument("--point", nargs=3, help=argparse.SUPPRESS)
    args: Any = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.point:
        what, way, length = args.point
        print(json.dumps((attention_point if what == "attention" else step_point)(way, int(length))))
        return
    print(f"{args.threads} threads")
    attention, steps = measure_attention(args.up_to, args.threads), measure_steps(args.up_to, args.threads)
    if args.plot:
        write_plot(args.plot, attention, steps)


if __name__ == "__main__":
    main()
