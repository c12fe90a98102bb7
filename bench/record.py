"""What looking costs: a forward pass and a greedy decoding with no tap recorded, with one, with all.

    python bench/record.py [threads]

A Transformer of 3 + 3 layers, width 192, 6 heads (that of the README) and a recurrent network with Bahdanau attention;
a padded batch of 16 sentences of about 20 tokens.  Medians of 9 interleaved rounds in milliseconds, and their ratio to
a run without recording.  The bar: at most 1.3 with one tap.  The last lines are the price of a tap that nobody looks
at: nanoseconds a call, calls a decoding, and percent of that decoding.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from dragoman.config import ModelConfig
from dragoman.models.build import build_model
from dragoman.models.seq2seq import Model
from dragoman.nn.record import record, tap_names
from dragoman.nn.taps import Tap
from dragoman.tokenizers import BOS, EOS

SENTENCES, LONGEST, VOCABULARY, ROUNDS, BAR = 16, 24, 8000, 9, 1.3
SIZES = {"d_model": 192, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.0}
MODELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Transformer": (
        SIZES | {"architecture": "transformer", "d_ff": 768, "n_heads": 6, "order": "pre"},
        ["decoder.layers.1.cross_attn.weights", "encoder.layers.1.around_ffn.norm.std", "output.probs"],
    ),
    "LSTM with Bahdanau attention": (
        SIZES | {"architecture": "lstm", "encoder_layers": 2, "decoder_layers": 2},
        ["decoder.layers.0.cross_attn.weights", "encoder.layers.0.ahead.forget_gate", "output.probs"],
    ),
}
"""Of each model, the taps that are recorded one at a time: the dearest kinds, which no kernel makes."""


def model_of(document: dict[str, Any]) -> Model:
    adapter: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)
    model = build_model(adapter.validate_python(document), VOCABULARY, VOCABULARY).eval()
    assert isinstance(model, Model)
    return model


def sources() -> tuple[Tensor, Tensor]:
    """Padded ids (B, S) and their mask; lengths from 16 to 24."""
    lengths = torch.arange(SENTENCES) % 9 + LONGEST - 8
    mask = torch.arange(LONGEST) < lengths[:, None]
    return torch.randint(EOS + 1, VOCABULARY, (SENTENCES, LONGEST)) * mask, mask


@torch.no_grad()
def forward(model: Model, src: Tensor, mask: Tensor) -> Tensor:
    logits: Tensor = model(src, mask, src)
    return logits


@torch.no_grad()
def greedy(model: Model, src: Tensor, mask: Tensor) -> Tensor:
    """LONGEST tokens of every sentence: an untrained model never stops by itself."""
    state = model.start(model.encode(src, mask), beams=1, max_len=LONGEST)
    tokens = torch.full((src.size(0), 1), BOS)
    for _ in range(LONGEST):
        tokens = model.decode(tokens, state).argmax(-1)
    return tokens


def measure(model: Model, run: Callable[[Model, Tensor, Tensor], Tensor], taps: list[str]) -> dict[str, float]:
    """Median milliseconds by what is recorded; a round goes through all of them, so that a slow moment hits all."""
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {"nothing": nullcontext}
    for tap in taps:
        ways[tap] = lambda tap=tap: record(model, tap)
    ways[f"all {len(tap_names(model))} taps"] = lambda: record(model, "*")
    src, mask = sources()
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS + 2):
        for way, recording in ways.items():
            began = time.perf_counter()
            with recording():
                run(model, src, mask)
            times[way].append(1e3 * (time.perf_counter() - began))
    return {way: statistics.median(values[2:]) for way, values in times.items()}


def unwatched(model: Model) -> tuple[float, int, float]:
    """Nanoseconds of a call of a tap without hooks, calls in a greedy decoding of one sentence, percent of its time."""
    tap, x, calls = Tap(), torch.zeros(1), 0
    began = time.perf_counter()
    for _ in range(200_000):
        tap(x)
    each = (time.perf_counter() - began) / 200_000
    src, mask = (tensor[:1] for tensor in sources())
    with record(model, "*") as seen:
        greedy(model, src, mask)
        calls = sum(map(len, seen.values()))
    greedy(model, src, mask)
    began = time.perf_counter()
    greedy(model, src, mask)
    return 1e9 * each, calls, 100 * calls * each / (time.perf_counter() - began)


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else torch.get_num_threads())
    print(f"{torch.get_num_threads()} threads")
    missed = False
    for name, (document, taps) in MODELS.items():
        model = model_of(document)
        for run in (forward, greedy):
            row = measure(model, run, taps)
            print(f"\n{name}, {run.__name__}\n{'recorded':42} {'ms':>8} {'ratio':>7}")
            for way, milliseconds in row.items():
                ratio = milliseconds / row["nothing"]
                above = way in taps and ratio > BAR
                missed |= above
                print(f"{way:42} {milliseconds:8.1f} {ratio:7.2f}{f'  above {BAR}' if above else ''}")
        each, calls, percent = unwatched(model)
        print(f"\nunwatched: {each:.0f} ns a call, {calls} calls a decoding, {percent:.2f} % of it")
    sys.exit(missed)


if __name__ == "__main__":
    main()
