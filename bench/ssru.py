"""Decoding steps of the native engine with self-attention and with an SSRU in the decoder.

    python bench/ssru.py
    python bench/ssru.py --rounds 3 --models 256x2 --precisions int8

A model `256x2` has d_model 256, 2 decoder layers and one encoder layer, with random weights and an output layer of
8,000 words.  Each row translates a source of 25 tokens by greedy search to a target of a given length, on one thread.
Prints the processor time per decoding step, the smallest of all rounds, in which both kinds take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from recipes import processor

from dragoman.config.model import TransformerConfig
from dragoman.decoding import SearchSettings
from dragoman.decoding.native.engine import Engine
from dragoman.decoding.native.pack import Precision, pack
from dragoman.models.build import build_model
from dragoman.models.seq2seq import Model
from dragoman.tokenizers import EOS

VOCAB = 8000
SOURCE = [5 + i for i in range(24)] + [EOS]
SHAPES = ((1, 30), (1, 200), (32, 30))
"""Rows and target length."""


def engine(size: str, kind: str, precision: Precision, folder: Path) -> Engine:
    d_model, layers = map(int, size.split("x"))
    config = TransformerConfig.model_validate(
        {
            "d_model": d_model, "d_ff": 4 * d_model, "n_heads": d_model // 32, "encoder_layers": 1,
            "decoder_layers": layers, "decoder_self": kind,
        }
    )  # fmt: skip
    model = build_model(config, VOCAB, VOCAB)
    assert isinstance(model, Model)
    return Engine(pack(model.float(), folder / f"{size}-{kind}-{precision}", precision, max_positions=256))


def step_seconds(engine: Engine, rows: int, length: int) -> float:
    """Processor time per step, without the encoder: that of a search that ends after one step is subtracted."""

    def search(tokens: int) -> float:
        begin = time.process_time()
        engine.search([SOURCE] * rows, [tokens + 1] * rows, SearchSettings(beam=1, min_length=tokens), threads=1)
        return time.process_time() - begin

    return (search(length) - search(1)) / (length - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["256x2", "512x6"])
    parser.add_argument("--precisions", nargs="+", default=["int8", "float32"], choices=["int8", "float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    print(processor())
    print("| model | precision | rows | target length | self-attention µs | SSRU µs | ratio |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for size in given.models:
            for precision in given.precisions:
                engines = [engine(size, kind, precision, Path(folder)) for kind in ("attention", "ssru")]
                for rows, length in SHAPES:
                    rounds = [[step_seconds(own, rows, length) for own in engines] for _ in range(given.rounds)]
                    attention, ssru = (1e6 * min(times) for times in zip(*rounds, strict=True))
                    row = f"| {size} | {precision} | {rows} | {length} | {attention:,.0f} | {ssru:,.0f} |"
                    print(f"{row} {attention / ssru:.2f} |", flush=True)


if __name__ == "__main__":
    main()
