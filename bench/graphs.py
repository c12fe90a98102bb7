"""Compare the CUDA graph backend with the PyTorch backend on the same device.

    python bench/graphs.py --device cuda                             # sizes of the paper's base, random weights
    python bench/graphs.py --device cpu --model random-tiny --sentences 20 --rounds 1      # smoke test

The backends run alternately; all targets have 40 tokens.  Reports milliseconds per token for single sentences, tokens
per second for the whole set, and the speed-up over the PyTorch backend in float32 (medians of the rounds).
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch
from decode import LENGTH, SHAPES, VOCABULARIES

from dragoman.config import TransformerConfig
from dragoman.decoding.cuda_graphs.backend import CudaGraphBackend
from dragoman.decoding.pytorch.backend import TorchBackend
from dragoman.decoding.settings import SearchSettings
from dragoman.models.build import build_model
from dragoman.models.seq2seq import Model

ALONE = 10


def backends(name: str, device: str) -> dict[str, TorchBackend]:
    """Return backends with the same weights."""

    def model(dtype: torch.dtype) -> Model:
        size = VOCABULARIES[name]
        built = build_model(TransformerConfig(**SHAPES[name]), size, size, seed=1).to(dtype).eval()
        assert isinstance(built, Model)
        return built

    kinds = (torch.float32, torch.bfloat16)
    made: dict[str, TorchBackend] = {f"PyTorch backend, {kind}": TorchBackend(model(kind), device) for kind in kinds}
    return made | {f"fixed shapes, {kind}": CudaGraphBackend(model(kind), device) for kind in kinds}


def seconds(backend: TorchBackend, rows: list[list[int]], beam: int, batch_tokens: int) -> float:
    settings = SearchSettings(beam=beam, min_length=LENGTH - 1, max_extra=0)
    padded = [[*row[:-1], *[row[0]] * (LENGTH - len(row)), row[-1]] for row in rows]  # as long as their targets
    began = time.perf_counter()
    backend.search(padded, [[]] * len(rows), settings, batch_tokens)  # returns after the device has finished
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", choices=SHAPES, default="random-base")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--batch-tokens", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rng = random.Random(1)
    words = range(4, VOCABULARIES[given.model])
    rows = [[*rng.choices(words, k=rng.randint(4, LENGTH - 1)), 3] for _ in range(given.sentences)]
    compared = backends(given.model, given.device)
    print(f"{given.model} on {torch.cuda.get_device_name() if given.device == 'cuda' else given.device}")
    for beam in (1, 4):
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in compared}
        for turn in range(given.rounds + 1):
            for name, backend in compared.items():
                single = sum(seconds(backend, [row], beam, given.batch_tokens) for row in rows[:ALONE])
                measured = single, seconds(backend, rows, beam, given.batch_tokens)
                if turn:  # the first round captures the graphs
                    times[name].append(measured)
        print(f"\n| beam {beam} | ms per token, single | speed-up | tokens/s, batched | speed-up |")
        print("|---|---|---|---|---|")
        first = next(iter(times.values()))
        for name, own in times.items():
            middle = [statistics.median(column) for column in zip(*own, strict=True)]
            ratios = [
                statistics.median(base[i] / measured[i] for base, measured in zip(first, own, strict=True))
                for i in (0, 1)
            ]
            print(
                f"| {name} | {middle[0] / len(rows[:ALONE]) / LENGTH * 1000:.3f} | {ratios[0]:.2f} | "
                f"{len(rows) * LENGTH / middle[1]:,.0f} | {ratios[1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
