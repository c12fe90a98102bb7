"""Export to ONNX: two graphs, the encoder and one step of the decoder with its states as inputs and outputs.

Written by the exporter of PyTorch that records a trace.  The graphs of `torch.export` compute the same, but those of a
small model are 1.6 times as large and take ten times as long.  Batch, source and target have dynamic sizes.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.config import Config, LearnedPosition, TransformerConfig
from dragoman.extras import extra_package
from dragoman.formats.onnx_graphs import TABLE, DecoderGraph, EncoderGraph, exportable, memory_names, state_axes
from dragoman.formats.parity import ExternalRuntime, ParityCase
from dragoman.formats.target import ExportSource, accepted_settings, tokenizer_reasons
from dragoman.formats.usage import onnx_page
from dragoman.models.transformer import Transformer
from dragoman.tokenizers import BOS, EOS, PAD, Tokenizer

PROGRAM = "the ONNX export"
QUANTIZATIONS: tuple[str, ...] = ("float32", "int8")
Axes = tuple[str | int, ...]
_OPSET = 17
_POSITIONS = ("none", "sinusoidal", "learned", "rotary", "shaw", "t5", "alibi")
_LIMITED = ("sinusoidal", "rotary")
"""Positions that become a table."""


def versions() -> dict[str, str]:
    packages = {name: onnxruntime_package(name) for name in ("onnx", "onnxruntime")}
    return {name: package.__version__ for name, package in packages.items()}


def unsupported(config: Config, tokenizer: Tokenizer) -> list[str]:
    model = config.model
    if not isinstance(model, TransformerConfig):
        return [f"architecture = {model.architecture!r}; {PROGRAM} supports transformer"]
    reasons = accepted_settings(PROGRAM, {"position.kind": (model.position.kind, _POSITIONS)})
    return reasons + tokenizer_reasons(PROGRAM, tokenizer)


def positions(config: Config) -> int | None:
    assert isinstance(config.model, TransformerConfig)
    position = config.model.position
    if isinstance(position, LearnedPosition):
        return position.max_len
    return _table_rows(config) if position.kind in _LIMITED else None


def write(model: ExportSource, folder: Path, quantization: str) -> None:
    assert isinstance(model.network, Transformer)
    network = exportable(model.network, _table_rows(model.config))
    encoder, decoder = EncoderGraph(network).eval(), DecoderGraph(network).eval()
    tokens, mask = torch.full((3, 7), EOS), torch.ones(3, 7, dtype=torch.bool)
    names, states = memory_names(network), state_axes(network)
    axes: dict[str, Axes] = {"tokens": ("batch", "source"), "mask": ("batch", "source"), "token": ("batch",)}
    axes |= dict.fromkeys(names, ("batch", 0, "source", 0)) | states | {"logits": ("batch", 0)}
    axes |= {f"next_{name}": tuple("length" if s == "past" else s for s in sizes) for name, sizes in states.items()}
    _write_graph(encoder, {"tokens": tokens, "mask": mask}, names, axes, folder / "encoder.onnx")
    with torch.no_grad():
        memory = dict(zip(names, encoder(tokens, mask), strict=True))
    sizes = {"batch": 3, "past": 5}
    first = {k: torch.zeros([sizes[s] if isinstance(s, str) else s for s in each]) for k, each in states.items()}
    inputs = {"token": torch.full((3,), EOS), "position": torch.tensor(5), "mask": mask, **memory, **first}
    _write_graph(decoder, inputs, ["logits", *(f"next_{name}" for name in states)], axes, folder / "decoder.onnx")
    if quantization == "int8":
        for name in ("encoder", "decoder"):
            _quantize(folder / f"{name}.onnx")
    for name, content in model.tokenizer.files().items():
        (folder / name).write_bytes(content)


def _table_rows(config: Config) -> int:
    """Return the number of positions of a model whose kind of positions has no limit."""
    return max(TABLE, config.data.max_tokens)


def runtime(model: ExportSource, folder: Path, quantization: str) -> ExternalRuntime:
    return OnnxRuntime(folder, quantization)


def other_tokenizer(model: ExportSource, folder: Path) -> None:
    return None


def page(model: ExportSource, quantization: str) -> str:
    names = sorted(name for name in model.tokenizer.files() if name.endswith(".model"))  # source.model, target.model
    return onnx_page(names[0], names[-1], model.tokenizer.lists)


def _write_graph(
    graph: nn.Module, inputs: dict[str, Tensor], outputs: list[str], axes: Mapping[str, Axes], path: Path
) -> None:
    """Write a file.  inputs: examples by name.  axes: of inputs and outputs; a text is the name of a dynamic size."""
    dynamic = {
        name: {i: size for i, size in enumerate(axes[name]) if isinstance(size, str)}
        for name in (*inputs, *outputs)
        if name in axes
    }
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            graph, tuple(inputs.values()), path, dynamo=False, input_names=list(inputs), output_names=outputs,
            dynamic_axes=dynamic, opset_version=_OPSET,
        )  # fmt: skip


def _quantize(path: Path) -> None:
    """Replace the matrices of a graph by int8 with one scale per output; activations are quantized when it runs."""
    quantization = onnxruntime_package("onnxruntime.quantization")
    whole = path.with_suffix(".float32.onnx")
    path.rename(whole)
    with _quiet():
        quantization.quantize_dynamic(whole, path, per_channel=True, weight_type=quantization.QuantType.QInt8)
    whole.unlink()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and log messages about the inner workings of the exporter."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


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
