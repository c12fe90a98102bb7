"""What length costs: softmax against linear attention, and a recurrent network against a Transformer in training.

    python bench/length.py [--threads 2] [--up-to 8192] [--plot FILE.svg]

Attention: one layer (d_model 128, 4 heads), one sequence; milliseconds and peak memory of a forward pass, and of a
forward and a backward pass.  The written-out softmax holds its weights, T by T a head; the fused kernel never does;
linear attention has no such weights.

Training: milliseconds of a step on always the same 4,096 tokens, from 256 sequences of 16 to one of 4,096, on one
thread and on all.  The stacks have equally many weights (three LSTM layers, two Transformer layers, two with linear
attention), so that the products with weights are the same work in every row of the table; what changes is how much of
it has to wait.  An LSTM makes T steps, one after the other, of N = 4,096 / T rows each: while N is large a step fills a
core and nothing is lost; where it is small, most of a step is overhead, and more threads have nothing to share.  The
Transformer waits for nothing, but its scores grow with T; linear attention has neither.  So look at how each column
grows and at what the second thread brings, not at one row: which of two kernels is faster at one length is another
question.

Every number comes from a process of its own (Linux), so that the peaks are its own; a time is the median of the rounds
of a second, three at least.
"""

from __future__ import annotations

import argparse
import json
import math
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

from dragoman.nn.attention import SelfAttention
from dragoman.nn.layers import EncoderLayer, FeedForward, SubLayer
from dragoman.nn.linear_attention import LinearSelfAttention
from dragoman.nn.positions import Positions

D, HEADS, TOKENS = 128, 4, 4096
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
STEP_LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
HELD_UP_TO = 4096
"""The longest sequence whose weights are held: 256 MiB a copy, of which training needs several."""
ATTENTIONS = ("softmax, written out", "softmax, fused", "linear", "linear, causal")
STACKS = ("LSTM", "Transformer", "linear Transformer")
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")

Point = dict[str, float]

# ------------------------------------------------------------------------------------------------- one measurement


def peak() -> float:
    """MiB that this process has held at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def median_ms(function: Callable[[], object]) -> float:
    times: list[float] = []
    while len(times) < 3 or sum(times) < 1:
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def attention_point(way: str, length: int) -> Point:
    """Milliseconds and MiB of one attention layer at one length."""
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
    training(x[:, :16])  # kernels and threads are loaded before the memory is looked at
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
            x = layer(x, Positions(), pos, None, True)
        return x, None


def step_point(way: str, length: int) -> Point:
    """Milliseconds of one training step on TOKENS tokens, in sequences of this length."""
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


def elsewhere(what: str, way: str, length: int, threads: int) -> Point:
    """A point, measured in a process of its own."""
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
            p = table[way][length] = elsewhere("attention", way, length, threads)
            forward = f"{p['forward_ms']:.1f} / {p['forward_mib']:.1f}"
            both = f"{p['both_ms']:.1f} / {p['both_mib']:.1f}"
            print(f"{length:7}  {way:20}  {forward:>18}  {both:>18}", flush=True)
    return table


def measure_steps(up_to: int, threads: int) -> Table:
    """Each point has the milliseconds on all `threads`, `ms`, and on one, `one_ms`."""
    table: Table = {way: {} for way in STACKS}
    print(f"\na training step of {TOKENS:,} tokens: milliseconds on 1 thread / on {threads} (times as fast)\n")
    print(f"{'length':>7}{'rows':>6}" + "".join(f"{way:>26}" for way in STACKS))
    for length in (n for n in STEP_LENGTHS if n <= up_to):
        cells = []
        for way in STACKS:
            one = elsewhere("step", way, length, 1)
            point = one if threads == 1 else elsewhere("step", way, length, threads)
            table[way][length] = point | {"one_ms": one["ms"]}
            cells.append(f"{one['ms']:.1f} / {point['ms']:.1f} ({one['ms'] / point['ms']:.2f})")
        print(f"{length:7}{TOKENS // length:6}" + "".join(f"{cell:>26}" for cell in cells), flush=True)
    print(f"\ntimes as long at the greatest length as at the least, on 1 thread / on {threads}; weights")
    for way, row in table.items():
        least, greatest = row[min(row)], row[max(row)]
        growth = " / ".join(f"{greatest[key] / least[key]:.1f}" for key in ("one_ms", "ms"))
        print(f"{way:20}{growth:>16}{least['parameters']:12,.0f}")
    return table


# ------------------------------------------------------------------------------------------------------------ plots

WIDTH, HEIGHT, LEFT, TOP = 330, 260, 56, 64
"""Of a panel's axes in pixels, and the room before and above them."""

Curves = dict[str, list[tuple[float, float]]]


def panel(title: str, unit: str, curves: Curves, left: float) -> list[str]:
    """Lines over two logarithmic axes, named in a legend below the title."""
    points = [point for line in curves.values() for point in line]
    low_x, high_x = (math.log2(f(x for x, _ in points)) for f in (min, max))
    low_y = math.floor(math.log10(min(y for _, y in points)))
    high_y = math.ceil(math.log10(max(y for _, y in points)))

    def across(x: float) -> float:
        return left + WIDTH * (math.log2(x) - low_x) / max(1e-9, high_x - low_x)

    def up(y: float) -> float:
        return TOP + HEIGHT * (1 - (math.log10(y) - low_y) / max(1, high_y - low_y))

    def text(x: float, y: float, words: str, anchor: str = "middle", style: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{words}</text>'

    out = [text(left, 20, f"{title} ({unit})", "start", ' font-weight="bold" font-size="13"')]
    for power in range(low_y, high_y + 1):
        y = up(10.0**power)
        out.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(text(left - 6, y + 4, f"{10.0**power:,g}", "end"))
    for x in sorted({x for x, _ in points}):
        out.append(text(across(x), TOP + HEIGHT + 16, f"{x:g}"))
    out.append(text(left + WIDTH / 2, TOP + HEIGHT + 34, "length in tokens"))
    for number, (name, line) in enumerate(curves.items()):
        colour = COLOURS[number]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        x, y = left + WIDTH / 2 * (number % 2), 38 + 15 * (number // 2)
        out.append(f'<rect x="{x:.1f}" y="{y - 8}" width="14" height="4" fill="{colour}"/>')
        out.append(text(x + 20, y - 2, name, "start"))
    return out


def curves(table: Table, key: str) -> Curves:
    """One line a row of the table; what was too small to be seen is left out."""
    return {way: [(n, p[key]) for n, p in row.items() if p[key] >= 0.1] for way, row in table.items()}


def picture(attention: Table, steps: Table) -> str:
    """The three panels as SVG."""
    panels = [
        ("Attention, forward and backward", "milliseconds", curves(attention, "both_ms")),
        ("Attention, peak memory", "MiB", curves(attention, "both_mib")),
        (f"Training step of {TOKENS:,} tokens in all", "milliseconds", curves(steps, "ms")),
    ]
    body: list[str] = []
    for number, (title, unit, lines) in enumerate(panels):
        body += panel(title, unit, lines, LEFT + number * (WIDTH + LEFT + 24))
    width, height = 3 * (WIDTH + LEFT + 24), TOP + HEIGHT + 48
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="system-ui, sans-serif" font-size="11" fill="#222">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *body,
            "</svg>\n",
        ]
    )


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
        args.plot.write_text(picture(attention, steps), encoding="utf-8")


if __name__ == "__main__":
    main()
