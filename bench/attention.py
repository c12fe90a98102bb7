"""Which path of attention is fastest on this machine, forward and backward, by length.

    python bench/attention.py [threads]

Three paths to the same numbers (dragoman.nn.attention): the written-out formula, the batched products with their own
backward, torch's fused kernel.  About 2,000 tokens a call, 4 heads of 32; medians of 15 interleaved rounds in
milliseconds, and the fused kernel's time over that of the batched products.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.nn.attention import attend_explicit, causal_bias
from dragoman.nn.fast import attend_short

HEADS, D_HEAD, TOKENS, ROUNDS = 4, 32, 2048, 15


def measure(length: int) -> dict[str, float]:
    """Median milliseconds of each path at this length."""
    shape = (TOKENS // length, HEADS, length, D_HEAD)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    g = torch.randn(shape)
    pos = torch.arange(length)
    bias = causal_bias(pos, pos, q.dtype)
    paths: dict[str, Callable[[], Tensor]] = {
        "explicit": lambda: attend_explicit(q, k, v, bias)[0],
        "short": lambda: attend_short(q, k, v, bias),
        "fused": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    times: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(ROUNDS + 2):
        for name, path in paths.items():
            began = time.perf_counter()
            path().backward(g)
            times[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
    print(f"{torch.get_num_threads()} threads\n length  explicit     short     fused   fused/short")
    for length in (8, 16, 32, 64, 128, 256, 512):
        row = measure(length)
        ratio = row["fused"] / row["short"]
        print(f"{length:7} {row['explicit']:9.2f} {row['short']:9.2f} {row['fused']:9.2f} {ratio:13.2f}")


if __name__ == "__main__":
    main()
