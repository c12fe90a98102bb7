"""Accuracy of position encodings beyond the training length.

    python bench/extrapolation.py [--task copy] [--kinds sinusoidal rotary ...] [--seeds 3] [--steps 2000] [--length 16]

Trains a small model on random sequences of at most L tokens and tests it on new ones of L, 2L and 4L.  Tasks:

    copy, reverse   a Transformer outputs the tokens in the same or the reverse order (L tokens and the end)
    next            a decoder-only model predicts the next token; each token is one more than the fifth before it

Output: percent of tokens correct with teacher forcing (chance: 10), median over the seeds with minimum and maximum in
parentheses; then percent of sequences without an error (median).  Seconds are per training.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dragoman.config import DecoderOnlyConfig, TransformerConfig
from dragoman.models.build import build_model
from dragoman.tokenizers import BOS, EOS, PAD

TASKS = ("copy", "reverse", "next")
KINDS: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"},
    "sinusoidal": {"kind": "sinusoidal"},
    "learned": {"kind": "learned"},  # max_len is set for the longest test; its last rows remain untrained
    "recurrent (embeddings)": {"kind": "recurrent", "source": "embeddings"},
    "recurrent (positions)": {"kind": "recurrent", "source": "positions"},
    "shaw": {"kind": "shaw", "clip": 8},
    "t5": {"kind": "t5", "buckets": 16, "max_distance": 64},
    "rotary": {"kind": "rotary"},
    "rotary (half)": {"kind": "rotary", "fraction": 0.5},
    "alibi": {"kind": "alibi"},
}
FIRST, SYMBOLS, LAG = EOS + 1, 10, 5
SIZES = {"d_model": 64, "d_ff": 128, "n_heads": 4, "dropout": 0.0, "order": "pre"}
BATCH, PEAK, WARMUP, TESTED = 64, 2e-3, 100, 256

Example = tuple[Tensor, Tensor, Tensor]
"""src (B, S), tgt_in (B, T), tgt_out (B, T); a batch has sequences of one length, so there is no padding."""


def examples(task: str, length: int, count: int, generator: torch.Generator) -> Example:
    """Return `count` sequences of `length` tokens; unpredictable positions are PAD in tgt_out and do not count."""
    words = torch.randint(FIRST, FIRST + SYMBOLS, (count, length), generator=generator)
    begin, end = torch.full((count, 1), BOS), torch.full((count, 1), EOS)
    if task == "next":
        for t in range(LAG, length):
            words[:, t] = FIRST + (words[:, t - LAG] - FIRST + 1) % SYMBOLS
        known = words.clone()
        known[:, :LAG] = PAD
        return words[:, :0], torch.cat([begin, words[:, :-1]], dim=1), known
    target = words.flip(1) if task == "reverse" else words
    return torch.cat([words, end], dim=1), torch.cat([begin, target], dim=1), torch.cat([target, end], dim=1)


def model_of(task: str, kind: str, length: int, seed: int) -> Any:
    position = KINDS[kind] | ({"max_len": 4 * length + 1} if kind == "learned" else {})
    sizes, vocabulary = SIZES | {"position": position}, FIRST + SYMBOLS
    if task == "next":
        return build_model(DecoderOnlyConfig.model_validate(sizes | {"n_layers": 2}), vocabulary, vocabulary, seed=seed)
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    return build_model(TransformerConfig.model_validate(sizes | layers), vocabulary, vocabulary, seed=seed)


def train(model: Any, task: str, length: int, steps: int, seed: int) -> None:
    """Train with Adam, linear warmup and linear decay to 0; every batch is new, its length is drawn up to L."""
    generator = torch.Generator().manual_seed(seed)
    shortest = LAG + 1 if task == "next" else 1
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    model.train()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min(step / WARMUP, 1 - (step - 1) / steps)
        drawn = int(torch.randint(shortest, length + 1, (), generator=generator))
        src, tgt_in, tgt_out = examples(task, drawn, BATCH, generator)
        loss = F.cross_entropy(model(src, None, tgt_in).flatten(0, 1), tgt_out.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.inference_mode()
def percent_correct(model: Any, task: str, length: int) -> tuple[float, float]:
    """Return percent of correct tokens and of correct sequences, on the same test set for every model."""
    src, tgt_in, tgt_out = examples(task, length, TESTED, torch.Generator().manual_seed(10**6 + length))
    model.eval()
    correct, counts = model(src, None, tgt_in).argmax(-1) == tgt_out, tgt_out != PAD
    return 100 * float(correct[counts].float().mean()), 100 * float((correct | ~counts).all(1).float().mean())


def row(task: str, kind: str, length: int, seeds: int, steps: int) -> str:
    seconds, results = [], []
    for seed in range(1, seeds + 1):
        model, began = model_of(task, kind, length, seed), time.perf_counter()
        train(model, task, length, steps, seed)
        seconds.append(time.perf_counter() - began)
        results.append([percent_correct(model, task, factor * length) for factor in (1, 2, 4)])
    cells = []
    for factor in range(3):
        tokens, sequences = zip(*(result[factor] for result in results), strict=True)
        spread = f"{statistics.median(tokens):5.1f} ({min(tokens):.0f}-{max(tokens):.0f})"
        cells.append(f"{spread:>16} {statistics.median(sequences):5.1f}")
    return f"{kind:24}" + "".join(cells) + f" {statistics.median(seconds):8.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy of each kind of position beyond the training length")
    parser.add_argument("--task", choices=TASKS, default="copy")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--length", type=int, default=16, help="L, at least 6")
    args = parser.parse_args()
    heads = "".join(f"{f'{n} tokens':>16}  all " for n in (args.length, 2 * args.length, 4 * args.length))
    print(
        f"{args.task}, trained on at most {args.length} tokens, {args.steps} steps, {args.seeds} seeds, percent correct"
    )
    print(f"{'kind':24}{heads}  seconds")
    for kind in args.kinds:
        print(row(args.task, kind, args.length, args.seeds, args.steps), flush=True)


if __name__ == "__main__":
    main()
