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
from torch import Tensor, nn

from dragoman.config import Config, LearnedPosition, TransformerConfig
from dragoman.extras import extra_package
from dragoman.formats.importing.numpy_reference import Floats, Ids, Memory, SearchedModel, State
from dragoman.formats.onnx_graphs import TABLE, DecoderGraph, EncoderGraph, exportable, memory_names, state_axes
from dragoman.formats.parity import ExternalRuntime
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


def onnxruntime_package(name: str = "onnxruntime") -> Any:
    """Import the package or one of its modules.  Raises UsageError if it is not installed."""
    return extra_package(name, "formats", "the format onnx")


# -------------------------------------------------------------------------------------------------------------- runtime


class OnnxRuntime(SearchedModel):
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
        ours = range(self.decoder.get_outputs()[0].shape[1])
        name = f"onnxruntime {package.__version__}, {quantization}"
        super().__init__(_Graphs(self.encoder, self.decoder), name, (range(1 << 31), ours), EOS)


class _Graphs:
    """The graphs as a `SearchableModel`: what it calls hidden vectors are logits."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        self.encoder, self.decoder = encoder, decoder
        self.memory = [each.name for each in encoder.get_outputs()]
        others = {"token", "position", "mask", *self.memory}
        self.states = {each.name: each.shape for each in decoder.get_inputs() if each.name not in others}

    def encode(self, sources: Sequence[Sequence[int]]) -> Memory:
        lengths = np.array([len(source) for source in sources])
        tokens = np.full((len(sources), lengths.max()), PAD)
        for row, source in zip(tokens, sources, strict=True):
            row[: len(source)] = source
        mask = np.arange(tokens.shape[1]) < lengths[:, None]
        memory = self.encoder.run(self.memory, {"tokens": tokens, "mask": mask})
        return {"mask": mask, **dict(zip(self.memory, memory, strict=True))}

    def start(self, rows: int) -> State:
        sizes = {"batch": rows, "past": 0}
        return [np.zeros([sizes.get(n, n) for n in shape], np.float32) for shape in self.states.values()]

    def step(self, tokens: Ids | None, position: int, state: State, memory: Memory) -> Floats:
        last = np.full(len(memory["mask"]), BOS) if tokens is None else tokens
        states = dict(zip(self.states, state, strict=True))
        feed = {"token": last, "position": np.array(position), **memory, **states}
        logits, *updated = self.decoder.run(None, feed)
        state[:] = updated
        result: Floats = logits
        return result

    def logits(self, hidden: Floats) -> Floats:
        return hidden
