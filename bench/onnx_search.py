"""Greedy and beam search around the two graphs of bench/onnx_export.py, in NumPy.

What has ended leaves the batch.

Letters: B sentences still searched, K beams, N = B*K rows, S source length, T tokens so far, C candidates of a row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
from numpy.typing import NDArray

PAD, BOS, EOS = 0, 2, 3
ALPHA = 0.6  # of the length penalty

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class Graphs:
    """The graphs, and the keys and values of one search."""

    mask: NDArray[np.bool_]
    cross: list[Floats]
    own: list[Floats]

    def __init__(self, folder: Path, threads: int) -> None:
        settings = ort.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        self.encoder, self.decoder = (
            ort.InferenceSession(str(folder / f"{name}.onnx"), settings, providers=["CPUExecutionProvider"])
            for name in ("encoder", "step")
        )
        self.names = [each.name for each in self.decoder.get_inputs()]  # no position where no number depends on it

    def start(self, sources: list[list[int]], beams: int) -> None:
        lengths = np.array([len(source) for source in sources])
        src = np.full((len(sources), lengths.max()), PAD, np.int64)
        for row, source in zip(src, sources, strict=True):
            row[: len(source)] = source
        self.mask = np.arange(src.shape[1]) < lengths[:, None]
        self.cross = self.encoder.run(None, {"src": src, "mask": self.mask})
        _, heads, _, size = self.cross[0].shape
        self.own = [np.zeros((len(sources) * beams, heads, 0, size), np.float32)] * len(self.cross)

    def step(self, tokens: Ints) -> tuple[Floats, Ints, Floats]:
        """tokens (B, K) -> the best continuations' log-probabilities and ids (B, K, C), those of the end (B, K)."""
        feed: dict[str, Any] = {"tokens": tokens, "position": np.array([self.own[0].shape[2]]), "mask": self.mask}
        feed |= {f"cross_{i}": part for i, part in enumerate(self.cross)}
        feed |= {f"own_{i}": part for i, part in enumerate(self.own)}
        best, words, end, *self.own = self.decoder.run(None, {name: feed[name] for name in self.names})
        return best.reshape(*tokens.shape, -1), words.reshape(*tokens.shape, -1), end.reshape(tokens.shape)

    def select(self, sentences: Ints, origins: Ints) -> None:
        """Keep `sentences` (B',) of B, with the beams `origins` (B', K) of each."""
        rows = (sentences[:, None] * origins.shape[1] + origins).ravel()
        if len(sentences) < len(self.mask):
            self.mask = self.mask[sentences]
            self.cross = [part[sentences] for part in self.cross]
        if not np.array_equal(rows, np.arange(len(self.own[0]))):
            self.own = [part[rows] for part in self.own]


def search(graphs: Graphs, sources: list[list[int]], beams: int, limits: list[int], least: int) -> list[list[int]]:
    """The best target of each source without its end: at most `limits` tokens with it, at least `least` without."""
    graphs.start(sources, beams)
    find = greedy if beams == 1 else beam_search
    return find(graphs, np.full((len(sources), beams), BOS), np.array(limits), least)


def greedy(graphs: Graphs, last: Ints, limits: Ints, least: int) -> list[list[int]]:
    """The most probable word each time; last (B, 1)."""
    numbers, length = np.arange(len(last)), 0  # (B,) of the sentences still searched
    targets: list[list[int]] = [[] for _ in limits]
    while len(numbers):
        length += 1
        _, words, _ = graphs.step(last)
        last = words[:, 0, :1]
        if length <= least:
            last = np.where(last == EOS, words[:, 0, 1:2], last)
        kept = np.flatnonzero((last[:, 0] != EOS) & (limits[numbers] > length))
        if len(kept) < len(numbers):
            graphs.select(kept, np.zeros((len(kept), 1), np.int64))
            numbers, last = numbers[kept], last[kept]
        for number, word in zip(numbers.tolist(), last[:, 0].tolist(), strict=True):
            targets[number].append(word)
    return targets


def beam_search(graphs: Graphs, last: Ints, limits: Ints, least: int) -> list[list[int]]:
    """The best by score, with the exact stop rule of `dragoman.decoding.pytorch.beam`; last (B, K)."""
    numbers = np.arange(len(last))
    sums = np.full(last.shape, -np.inf, np.float32)  # (B, K), -inf = an empty place
    sums[:, 0] = 0
    tokens = np.zeros((*last.shape, 0), np.int64)
    found: list[tuple[float, list[int]]] = [(-np.inf, [])] * len(last)
    while len(numbers):
        length = tokens.shape[2] + 1
        sums, last, origins = grown(sums, *graphs.step(last), length > least, limits[numbers] == length)
        tokens = np.concatenate([tokens[np.arange(len(tokens))[:, None], origins], last[..., None]], 2)
        ended = (last == EOS) & (sums > -np.inf)
        for row, beam in np.argwhere(ended).tolist():
            score = float(sums[row, beam] / penalty(length))
            if score > found[numbers[row]][0]:
                found[numbers[row]] = score, tokens[row, beam, :-1].tolist()
        sums[ended] = -np.inf
        to_beat = np.array([found[number][0] for number in numbers.tolist()])
        kept = np.flatnonzero(sums.max(1) / penalty(limits[numbers]) > to_beat)
        graphs.select(kept, origins[kept])
        numbers, sums, last, tokens = numbers[kept], sums[kept], last[kept], tokens[kept]
    return [target for _, target in found]


def grown(
    sums: Floats, best: Floats, words: Ints, end: Floats, may_end: bool, must_end: NDArray[np.bool_]
) -> tuple[Floats, Ints, Ints]:
    """The K best continuations of hypotheses (B, K): their log-probabilities, last words and origins (B, K)."""
    if not may_end:
        best[words == EOS] = -np.inf
    if must_end.any():
        best[must_end], words[must_end] = -np.inf, EOS
        best[must_end, :, 0] = end[must_end]
    totals = (sums[..., None] + best).reshape(len(sums), -1)  # (B, K*C)
    places = np.argsort(-totals, axis=1, kind="stable")[:, : sums.shape[1]]
    rows = np.arange(len(sums))[:, None]
    return totals[rows, places], words.reshape(totals.shape)[rows, places], places // best.shape[2]


def penalty(length: Any) -> Any:
    """Of a target of so many tokens, its end included."""
    return ((5 + length) / 6) ** ALPHA
