"""An exported ONNX folder in onnxruntime, with a greedy search and a beam search in NumPy for the parity report.

Letters: B cases, K beams, N = B*K rows, S source length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.extras import extra_package
from dragoman.formats.parity import ParityCase
from dragoman.tokenizers import BOS, EOS, PAD

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
_ROWS = 64


def onnxruntime_package(name: str = "onnxruntime") -> Any:
    """Import the package or one of its modules.  Raises UsageError if it is not installed."""
    return extra_package(name, "formats", "the format onnx")


class OnnxRuntime:
    """A folder with encoder.onnx and decoder.onnx, run on one thread: a `formats.parity.ExternalRuntime`."""

    def __init__(self, folder: Path, quantization: str) -> None:
        package = onnxruntime_package()
        options = package.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        self.encoder, self.decoder = (
            package.InferenceSession(str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
            for name in ("encoder", "decoder")
        )
        self.name = f"onnxruntime {package.__version__}, {quantization}"
        self.memory = [each.name for each in self.encoder.get_outputs()]
        given = {"token", "position", "mask", *self.memory}
        self.states = {each.name: each.shape for each in self.decoder.get_inputs() if each.name not in given}

    def score(self, case: ParityCase, ids: Sequence[int]) -> list[float]:
        step = _Step(self, [case], 1)
        found = []
        for last, token in zip([BOS, *ids[:-1]], ids, strict=True):
            found.append(float(_log_softmax(step(np.array([last])))[0, token]))
        return found

    def search(
        self, cases: Sequence[ParityCase], width: int, min_length: int, max_length: int
    ) -> list[list[list[int]]]:
        count = max(1, _ROWS // width)
        batches = (cases[begin : begin + count] for begin in range(0, len(cases), count))
        if width == 1:
            return [[ids] for batch in batches for ids in self._greedy(batch, max_length)]
        assert min_length == max_length
        return [found for batch in batches for found in self._beam(batch, width, max_length)]

    def _greedy(self, cases: Sequence[ParityCase], max_length: int) -> Iterator[list[int]]:
        step, tokens = _Step(self, cases, 1), np.full((len(cases), 1), BOS)
        for _ in range(max_length):
            logits = step(tokens[:, -1])
            logits[:, [PAD, BOS]] = -np.inf
            tokens = np.concatenate([tokens, logits.argmax(1)[:, None]], axis=1)
            if (tokens == EOS).any(1).all():
                break
        for row in tokens[:, 1:].tolist():
            yield row[: row.index(EOS)] if EOS in row else row

    def _beam(self, cases: Sequence[ParityCase], width: int, length: int) -> list[list[list[int]]]:
        """Return the targets of exactly `length` tokens; special tokens are excluded from the softmax."""
        step, count = _Step(self, cases, width), len(cases)
        tokens = np.full((count * width, 1), BOS)
        sums = np.full((count, width), -np.inf, np.float32)  # the beams of a case are equal at first
        sums[:, 0] = 0
        for _ in range(length):
            logits = step(tokens[:, -1])
            logits[:, [PAD, BOS, EOS]] = -np.inf
            vocabulary = logits.shape[1]
            totals = (sums.reshape(-1, 1) + _log_softmax(logits)).reshape(count, -1)  # (B, K*V)
            best = np.argsort(-totals, axis=1, kind="stable")[:, :width]
            sums = np.take_along_axis(totals, best, axis=1)
            rows = (np.arange(count)[:, None] * width + best // vocabulary).ravel()
            tokens = np.concatenate([tokens[rows], (best % vocabulary).reshape(-1, 1)], axis=1)
            step.select(rows)
        return tokens[:, 1:].reshape(count, width, -1).tolist()


class _Step:
    """The cases of a batch while they are decoded, each with a number of rows."""

    def __init__(self, runtime: OnnxRuntime, cases: Sequence[ParityCase], rows: int) -> None:
        lengths = np.array([len(case.source) for case in cases])
        tokens = np.full((len(cases), lengths.max()), PAD)
        for row, case in zip(tokens, cases, strict=True):
            row[: len(case.source)] = case.source
        mask = np.arange(tokens.shape[1]) < lengths[:, None]
        memory = runtime.encoder.run(runtime.memory, {"tokens": tokens, "mask": mask})
        sizes = {"batch": len(cases) * rows, "past": 0}
        self.decoder, self.position = runtime.decoder, 0
        self.fixed = {"mask": mask.repeat(rows, axis=0)}
        self.fixed |= {name: part.repeat(rows, axis=0) for name, part in zip(runtime.memory, memory, strict=True)}
        self.states: dict[str, Floats] = {
            name: np.zeros([sizes.get(size, size) for size in shape], np.float32)
            for name, shape in runtime.states.items()
        }

    def __call__(self, last: Ints) -> Floats:
        """Return the logits (N, V) after the tokens `last` (N,)."""
        feed = {"token": last, "position": np.array(self.position), **self.fixed, **self.states}
        logits, *states = self.decoder.run(None, feed)
        self.position += 1
        self.states = dict(zip(self.states, states, strict=True))
        found: Floats = logits
        return found

    def select(self, rows: Ints) -> None:
        """Reorder the rows (N,) of the states."""
        self.states = {name: state[rows] for name, state in self.states.items()}


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found
