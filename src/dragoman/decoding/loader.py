"""From a model folder to whatever translates it fastest here: the engine where it can, the plain path for all else.

A packed model is kept in the model folder as `packed/<precision>.bin`, with a `.json` that records everything it was
made from (weights, architecture, vocabulary sizes, positions, version) and its own sha256.  It is made by the first
process that loads the model, and again whenever one of these has changed.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dragoman._version import __version__
from dragoman.config import Config
from dragoman.data.tokenizer import Tokenizer
from dragoman.data.vocabulary import load_vocabulary
from dragoman.decoding.backend import DecodingBackend
from dragoman.decoding.native.backend import NativeBackend
from dragoman.decoding.native.engine import Engine, usable_cores
from dragoman.decoding.native.library import VERSION, Precision, load_native, missing
from dragoman.decoding.shortlist import SHORTLIST, Shortlist
from dragoman.errors import DragomanError, ModelFolderError, TrainingError, UsageError
from dragoman.io.reading import read_json
from dragoman.io.writing import write_file
from dragoman.models.model_folder import (
    find_model,
    load_network,
    read_config,
    read_meta,
    verify,
    wrong_model,
)

if TYPE_CHECKING:
    import torch

    from dragoman.decoding.pytorch.backend import TorchBackend

__all__ = ["EngineChoice", "Quantize", "load_searcher"]

Quantize = Literal["auto", "int8", "bf16", "none"]
EngineChoice = Literal["auto", "plain", "fast"]

POSITIONS = 1024
"""Longest source and target of a packed model, or twice the longest that the model was trained on."""
PRECISIONS: dict[str, Precision] = {"auto": "int8", "int8": "int8", "bf16": "bfloat16", "none": "float32"}


_LARGEST_RECORD = 1 << 20
"""Bytes at most of the `.json` beside a packed model."""


class BackendUnavailable(DragomanError):
    """Why a model runs on the plain path."""


def load_searcher(
    path: str | Path,
    kind: Literal["parallel", "text"],
    lack: str,
    device: str | torch.device = "cpu",
    quantize: Quantize = "auto",
    engine: EngineChoice = "auto",
    threads: int | None = None,
    shortlist: bool = False,
) -> tuple[DecodingBackend, Tokenizer, Config]:
    """DecodingBackend, tokenizer and configuration of a model that writes text; the arguments are `Translator.load`'s.

    kind: of the data it must have learned from, "parallel" or "text"; lack: what is said of any other model.

    Raises ModelFolderError, and UsageError for what cannot be had here or is no such choice.
    """
    _check(quantize, engine, threads)
    backend, vocabulary, config = _searcher(path, kind, lack, device, quantize, engine, threads)
    if shortlist:
        backend.shortlist = load_shortlist(path)
    return backend, vocabulary, config


def load_shortlist(path: str | Path) -> Shortlist:
    """What `dragoman shortlist` left in a model folder.  Raises UsageError where there is none, ModelFolderError."""
    folder = find_model(path)
    return Shortlist.read(folder / SHORTLIST, read_meta(folder)["sha256"]["model.safetensors"])


def _searcher(
    path: str | Path,
    kind: Literal["parallel", "text"],
    lack: str,
    device: str | torch.device,
    quantize: Quantize,
    engine: EngineChoice,
    threads: int | None,
) -> tuple[DecodingBackend, Tokenizer, Config]:
    required = engine == "fast" or quantize in ("int8", "bf16")
    if engine == "plain":
        return _plain(path, kind, lack, device, "")
    try:
        if str(device) != "cpu" and engine == "fast":
            raise BackendUnavailable(f"the native engine is for the CPU, not for {device}")
        if str(device) != "cpu":
            return _repeated(path, kind, lack, device, quantize)
        return _fast(path, kind, lack, quantize, threads or usable_cores())
    except BackendUnavailable as reason:
        if required:
            raise UsageError(f"{path}: {reason}; accepted here: engine = auto and quantize = auto or none") from None
        return _plain(path, kind, lack, device, str(reason))


def _check(quantize: str, engine: str, threads: int | None) -> None:
    problems = []
    if quantize not in PRECISIONS:
        problems.append(f"quantize = {quantize!r}: must be one of {', '.join(PRECISIONS)}")
    if engine not in ("auto", "plain", "fast"):
        problems.append(f"engine = {engine!r}: must be one of auto, plain, fast")
    if engine == "plain" and quantize in ("int8", "bf16"):
        problems.append(f"quantize = {quantize!r}: the plain path has float32 only; leave engine at auto")
    if threads is not None and threads not in range(1, 1025):
        problems.append(f"threads = {threads}: must be 1 to 1024")
    if problems:
        raise UsageError("\n".join(["this translator cannot be had:", *(f"  - {p}" for p in problems)]))


def _repeated(
    path: str | Path, kind: str, lack: str, device: str | torch.device, quantize: Quantize
) -> tuple[DecodingBackend, Tokenizer, Config]:
    """Of a GPU: a step that it repeats by itself, in half the bytes a weight where that is allowed."""
    import torch

    from dragoman.decoding.cuda_graphs.backend import CudaGraphBackend, cuda_graph_unsupported_reasons

    if torch.device(device).type != "cuda":
        raise BackendUnavailable(f"the native engine is for the CPU, and CUDA graphs are for CUDA, not for {device}")
    if quantize == "int8":
        raise BackendUnavailable("int8 is for the CPU; a GPU takes bf16")
    folder = find_model(path)
    plain, vocabulary, config = _plain(folder, kind, lack, device, "")
    reasons = cuda_graph_unsupported_reasons(plain.model)
    if reasons:
        plain.why = "the GPU cannot repeat its steps by itself: " + "; ".join(reasons)
        if quantize == "bf16":
            raise BackendUnavailable(plain.why)
        return plain, vocabulary, config
    with torch.cuda.device(plain.model.device):
        quick = torch.cuda.is_bf16_supported(including_emulation=False)
    short = quantize == "bf16" or (quantize == "auto" and quick)
    backend = CudaGraphBackend(plain.model.bfloat16() if short else plain.model, device)
    if short and quantize == "auto":
        backend.load_scorer = lambda: _plain(folder, kind, lack, device, "")[0]
    return backend, vocabulary, config


def _plain(
    path: str | Path, kind: str, lack: str, device: str | torch.device, why: str
) -> tuple[TorchBackend, Tokenizer, Config]:
    from dragoman.decoding.pytorch.backend import TorchBackend
    from dragoman.models.seq2seq import Model

    network, vocabulary, config = load_network(path)
    if config.data.kind != kind or not isinstance(network, Model) or not isinstance(vocabulary, Tokenizer):
        raise wrong_model(path, config, lack)
    return TorchBackend(network, device, why), vocabulary, config


def _fast(
    path: str | Path, kind: Literal["parallel", "text"], lack: str, quantize: Quantize, threads: int
) -> tuple[DecodingBackend, Tokenizer, Config]:
    native, precision = load_native(), PRECISIONS[quantize]
    if native is None:
        raise BackendUnavailable(f"no native engine, which would be some ten times as fast: {missing()}")
    if precision == "bfloat16" and not native.library.dragoman_bfloat16():
        raise BackendUnavailable(f"this processor does not multiply bfloat16 ({native.build})")
    folder = find_model(path)
    meta = verify(folder, skip=("model.safetensors", "training.safetensors"))
    config = read_config(folder)
    vocabulary = load_vocabulary(folder)
    if config.data.kind != kind or not isinstance(vocabulary, Tokenizer):
        raise wrong_model(path, config, lack)
    engine = _engine(folder, _origin(precision, meta, config, vocabulary))

    def plain() -> DecodingBackend:
        return _plain(folder, kind, lack, "cpu", "the engine has handed over")[0]

    backend = NativeBackend(engine, precision, threads, plain)
    if quantize == "auto":
        backend.load_scorer = lambda: _searcher(folder, kind, lack, "cpu", "none", "auto", threads)[0]
    return backend, vocabulary, config


def _origin(precision: Precision, meta: dict[str, Any], config: Config, vocabulary: Tokenizer) -> dict[str, Any]:
    """Everything a packed model depends on; equal origins give identical files."""
    return {
        "version": VERSION,
        "package_version": __version__,
        "precision": precision,
        "weights": meta["sha256"]["model.safetensors"],
        "model": config.model.model_dump(mode="json"),
        "source_size": vocabulary.source_size,
        "target_size": vocabulary.target_size,
        "shared": vocabulary.shared,
        "positions": max(POSITIONS, 2 * config.data.max_tokens),
    }


def _engine(folder: Path, origin: dict[str, Any]) -> Engine:
    """The engine of the packed model, which is made where it is missing, outdated or damaged."""
    packed = folder / "packed" / f"{origin['precision']}.bin"
    engine = _kept(packed, origin)
    if engine is not None:
        return engine
    try:
        packed.parent.mkdir(exist_ok=True)
        return _pack(folder, packed, origin)
    except (OSError, TrainingError):  # a read-only folder, or a full disk: pack for this process only
        try:
            with tempfile.TemporaryDirectory(prefix="dragoman-") as place:
                return _pack(folder, Path(place) / packed.name, origin)
        except (OSError, TrainingError) as error:
            raise BackendUnavailable(
                f"the packed model can be written neither to {packed.parent} nor to a temporary folder ({error}); "
                "make room there, or set TMPDIR to a folder with room"
            ) from None


def _kept(packed: Path, origin: dict[str, Any]) -> Engine | None:
    """The engine of a packed file that was made from `origin` and is undamaged, else None.

    The sha256 is that of the bytes which the engine has read, so that a file that changes meanwhile is noticed.
    """
    record = packed.with_suffix(".json")
    try:
        about = read_json(record, ModelFolderError, "", _LARGEST_RECORD)
        if about | origin != about:
            return None
        engine = Engine(packed)
    except (OSError, ValueError, DragomanError):
        return None
    undamaged = hashlib.sha256(engine.content).hexdigest() == about.get("sha256")
    sizes = {"target_size": engine.target_size} | ({"source_size": engine.source_size} if engine.encodes else {})
    return engine if undamaged and origin | sizes == origin else None


def _pack(folder: Path, packed: Path, origin: dict[str, Any]) -> Engine:
    from dragoman.decoding.native.pack import pack, unsupported

    network, _, _ = load_network(folder)
    reasons = unsupported(network)
    if reasons:
        raise BackendUnavailable("the native engine does not have it: " + "; ".join(reasons))
    pack(network, packed, origin["precision"], origin["positions"])
    try:
        engine = Engine(packed)
    except DragomanError as error:
        raise BackendUnavailable(str(error)) from None
    about = origin | {"sha256": hashlib.sha256(engine.content).hexdigest()}
    write_file(packed.with_suffix(".json"), json.dumps(about, indent=1).encode())
    return engine
