"""Model folders and run folders on disk: nothing half-written, nothing trusted unread, no pickle.

Torch is imported where weights are read or written only: the engine finds its packed model without it.

A model folder holds `config.json`, `model.safetensors`, the tokenizer's file(s) and `meta.json` (format version,
package version, step, scores, sha256 of each file); while training also `training.safetensors` and `training.json`.
It is written under a temporary name, flushed, and renamed.  A run folder holds `checkpoints/<step>/` and the pointers
`best`, `last`, `average`: small text files that name one of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from dragoman._version import __version__
from dragoman.config import Config, parse_config
from dragoman.data.tokenizer import Tokenizer
from dragoman.data.vocabulary import Vocabulary, load_vocabulary
from dragoman.errors import ConfigError, ModelFolderError, TrainingError, UsageError
from dragoman.io.reading import read_json, read_text
from dragoman.io.weights import file_problem, load_file, read_header
from dragoman.io.writing import atomic_file, flush_folder, is_full, not_written

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dragoman.models.seq2seq import Model, Network

__all__ = [
    "FORMAT_VERSION",
    "USED_BY",
    "average_tensors",
    "build_for",
    "find_model",
    "load_file",
    "load_model",
    "load_network",
    "load_tensors",
    "point",
    "read_config",
    "read_header",
    "read_meta",
    "read_pointer",
    "recover",
    "remove_folder",
    "save_model",
    "steps_in",
    "unique_tensors",
    "verify",
    "write_file",
    "write_folder",
    "wrong_model",
]

FORMAT_VERSION = 1
POINTERS = ("best", "last", "average")
_COPY_AGAIN = "Copy the folder again, whole."
USED_BY = {
    "parallel": "dragoman translate",
    "text": "dragoman generate",
    "masked": "dragoman vectors",
    "tagged": "dragoman label",
    "labelled": "dragoman label",
    "images": "dragoman.Labeller, in Python",
    "trees": "dragoman parse",
}
"""Kind of data -> the command, or the class, that uses a model that learned from it."""


# ----------------------------------------------------------------------------------------------------------- writing


def write_folder(folder: Path, files: Mapping[str, bytes], meta: Mapping[str, Any]) -> None:
    """Write `files` and a `meta.json` with their sha256 as `folder`, whole or not at all.

    Raises `TrainingError` when the disk is full or cannot be written; what was there before stays.
    """
    about = {
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        **meta,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    content = dict(files) | {"meta.json": json.dumps(about, indent=1, ensure_ascii=False).encode()}
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for name, data in content.items():
            _write_flushed(unfinished / name, data)
        _exchange(unfinished, folder)
        flush_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        megabytes = sum(map(len, content.values())) / 1e6
        also = f"It needs {megabytes:.1f} MB. What was saved before is untouched."
        full = " A lower train.keep needs less space; the same command, run again, continues from what was saved."
        raise TrainingError(not_written(folder, error, also) + (full if is_full(error) else "")) from error


def _exchange(unfinished: Path, folder: Path) -> None:
    """Give the finished folder its name; what had the name before is back if that fails (see `recover`)."""
    replaced = folder.with_name(f".{folder.name}.replaced")
    if folder.exists():
        folder.rename(replaced)
    try:
        unfinished.rename(folder)
    except OSError:
        if replaced.exists():
            replaced.rename(folder)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder so that no half of it is ever taken for the whole."""
    removed = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    folder.rename(removed)
    shutil.rmtree(removed)


def recover(parent: Path) -> None:
    """Put right what a kill left behind among the model folders in `parent`: unfinished, replaced, removed ones."""
    for replaced in parent.glob(".*.replaced"):
        folder = replaced.with_name(replaced.name[1 : -len(".replaced")])
        if not folder.exists():
            replaced.rename(folder)
    for pattern in (".*.unfinished", ".*.replaced", ".*.removed"):
        for left in parent.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.  Raises `TrainingError` when the disk is full; what was there stays."""
    try:
        with atomic_file(path) as file:
            file.write(data)
    except OSError as error:
        raise TrainingError(not_written(path, error, "What was there before is untouched.")) from error


def _write_flushed(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and kept buffers by name; one that goes by two names (a tied matrix) only under the first."""
    kept = model.state_dict().keys()  # buffers that can be made again are not in it
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    return tensors | {name: b for name, b in model.named_buffers() if name in kept}


def save_model(
    folder: Path,
    config: Config,
    vocabulary: Vocabulary,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    training: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model folder; `training` are the files that a resumed run needs (`training_files`)."""
    import safetensors.torch

    files = {
        "config.json": config.model_dump_json(indent=1).encode(),
        "model.safetensors": safetensors.torch.save({k: v.contiguous().cpu() for k, v in tensors.items()}),
        **vocabulary.files(),
        **(training or {}),
    }
    write_folder(folder, files, meta)


def point(run: Path, name: str, target: Path) -> None:
    """Make the pointer `name` of a run folder name `target`, atomically."""
    write_file(run / name, f"{target.relative_to(run).as_posix()}\n".encode())


# ----------------------------------------------------------------------------------------------------------- reading


def read_pointer(run: Path, name: str) -> Path | None:
    """The folder that a pointer names, or None where there is no pointer.

    Raises ModelFolderError where it names anything but a folder inside the run.
    """
    file = run / name
    if not os.path.lexists(file):
        return None
    advice = f"Name a checkpoint in place of the run, or put the path of one into {name}: checkpoints/<step>."
    text = read_text(file, ModelFolderError, advice, limit=4096).strip()
    path = PurePosixPath(text)
    if not path.parts or not text.isprintable() or ".." in path.parts or path.root or PureWindowsPath(text).anchor:
        raise ModelFolderError(f"{file}: {text[:80]!r} is not the path of a folder inside the run. {advice}")
    return run / path


def steps_in(run: Path) -> list[Path]:
    """The checkpoints of a run by step, oldest first."""
    folder = run / "checkpoints"
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if re.fullmatch("[0-9]+", path.name) and path.is_dir())
    return sorted(found, key=lambda path: int(path.name))


def find_model(path: str | Path) -> Path:
    """A run folder, one of its checkpoints or pointers, or a model folder -> the model folder.

    Raises `ModelFolderError` when there is none.
    """
    path = Path(path)
    if (path / "model.safetensors").exists() or (path / "meta.json").exists():
        return path
    if path.is_file() and path.name in POINTERS:
        return read_pointer(path.parent, path.name) or path
    if path.is_dir():
        targets = [target for name in ("best", "last") if (target := read_pointer(path, name)) is not None]
        for target in targets:
            if target.is_dir():
                return target
        if targets:
            raise ModelFolderError(f"{targets[0]}: missing, though {path} points to it; copy the run again, whole")
        if (path / "config.toml").exists():
            raise ModelFolderError(
                f"{path}: a run without a checkpoint yet; train on with: dragoman train CONFIG --out {path}"
            )
        raise ModelFolderError(
            f"{path}: not a model; accepted: a run folder, one checkpoint in it, or a folder with config.json, "
            "model.safetensors, the tokenizer and meta.json"
        )
    what = "not a folder" if os.path.lexists(path) else "no such folder"
    raise ModelFolderError(f"{path}: {what}; train a model first, or name the folder that 'dragoman train' wrote")


def read_meta(folder: Path) -> dict[str, Any]:
    """`meta.json` of a model folder.  Raises `ModelFolderError` when it is missing, damaged or of a later format."""
    meta = read_json(folder / "meta.json", ModelFolderError, _COPY_AGAIN)
    version = meta.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ModelFolderError(
            f"{folder}: format version {str(version)[:20]}, and this Dragoman {__version__} reads up to "
            f"{FORMAT_VERSION}; "
            f"upgrade (the folder was written by Dragoman {str(meta.get('package_version'))[:20]})"
        )
    problems = list(_meta_problems(meta))
    if problems:
        raise ModelFolderError(f"{folder}/meta.json: cannot be read: {'; '.join(problems)}. {_COPY_AGAIN}")
    return meta


def _meta_problems(meta: Mapping[str, Any]) -> Iterator[str]:
    def wrong(key: str, accepted: str) -> str:
        return f"{key} is {str(meta.get(key))[:40]!r}, accepted: {accepted}"

    if type(meta.get("format_version")) is not int or meta["format_version"] < 1:
        yield wrong("format_version", f"1 to {FORMAT_VERSION}")
    if not isinstance(meta.get("package_version"), str):
        yield wrong("package_version", "text")
    if type(meta.get("step", 0)) is not int or not 0 <= meta.get("step", 0) < 1 << 63:
        yield wrong("step", "a number of steps")
    scores = meta.get("scores", {})
    if not isinstance(scores, dict) or not all(isinstance(score, int | float) for score in scores.values()):
        yield wrong("scores", "an object of numbers")
    digests = meta.get("sha256")
    if not isinstance(digests, dict):
        yield wrong("sha256", "an object of file names and their sha256")
        return
    unlisted = sorted({"config.json", "model.safetensors"} - digests.keys())
    if unlisted:
        yield f"no sha256 of {', '.join(unlisted)}"
    for name, digest in digests.items():
        if not re.fullmatch(r"\w[\w. -]*", name) or not isinstance(digest, str):
            yield f"{str(name)[:40]!r} with sha256 {str(digest)[:40]!r} is not a file of a model folder"


def verify(folder: Path, but: Collection[str] = ()) -> dict[str, Any]:
    """Check every file of a model folder against its sha256; return the meta.  Raises with all problems at once.

    but: names of files that are not read.
    """
    meta = read_meta(folder)
    found = ((name, file_problem(folder / name, sha256)) for name, sha256 in meta["sha256"].items() if name not in but)
    problems = [f"{name} {problem}" for name, problem in found if problem]
    if problems:
        raise ModelFolderError(f"{folder}: {'; '.join(problems)}. Copy the folder again, or use an earlier checkpoint.")
    return meta


def build_for(config: Config, vocabulary: Vocabulary) -> Network:
    """The fresh model of a configuration and its vocabulary.  Raises `UsageError` where memory does not suffice."""
    from dragoman.models.build import build_model
    from dragoman.models.size import check_memory

    check_memory(config.model, vocabulary.source_size, vocabulary.target_size, shared=vocabulary.shared)
    return build_model(
        config.model, vocabulary.source_size, vocabulary.target_size, shared=vocabulary.shared, seed=config.train.seed
    )


def read_config(path: str | Path) -> Config:
    """The configuration of a model or run folder.  Raises `ModelFolderError`."""
    folder = find_model(path)
    document = read_json(folder / "config.json", ModelFolderError, _COPY_AGAIN)
    try:
        return parse_config(document, where=str(folder / "config.json"), stored=True)
    except (ConfigError, ValueError) as error:
        raise ModelFolderError(f"{folder}/config.json: {error}") from None
    except RecursionError:
        raise ModelFolderError(f"{folder}/config.json: its brackets are nested too deeply. {_COPY_AGAIN}") from None


def load_network(path: str | Path, device: str | torch.device = "cpu") -> tuple[Network, Vocabulary, Config]:
    """Network (in evaluation mode), vocabulary and configuration of a model or run folder, every file checked."""
    folder = find_model(path)
    verify(folder)
    config = read_config(folder)
    vocabulary = load_vocabulary(folder)
    network = build_for(config, vocabulary)
    try:
        load_tensors(network, load_file(folder / "model.safetensors"), folder)
    except ModelFolderError as error:
        raise ModelFolderError(
            f"{error}. The model was built from config.json and a vocabulary of {vocabulary.source_size:,} source and "
            f"{vocabulary.target_size:,} target entries; where sizes differ, one of these files is of another model."
        ) from None
    return network.to(device).eval(), vocabulary, config


def load_model(path: str | Path, device: str | torch.device = "cpu") -> tuple[Model, Tokenizer, Config]:
    """As `load_network`, of a model that translates.  Raises `UsageError` for any other."""
    from dragoman.models.seq2seq import Model

    network, vocabulary, config = load_network(path, device)
    if config.data.kind != "parallel" or not isinstance(network, Model) or not isinstance(vocabulary, Tokenizer):
        raise wrong_model(path, config, "does not translate")
    return network, vocabulary, config


def wrong_model(path: str | Path, config: Config, lack: str) -> UsageError:
    """The error where a model is asked for what it has not learned; lack: "does not translate"."""
    return UsageError(
        f'{path}: this model {lack}: it is of architecture "{config.model.architecture}" and learned from data of kind '
        f'"{config.data.kind}"; it is used by: {USED_BY[config.data.kind]}'
    )


def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copy tensors into the parameters of the same names.  Raises with every missing, unknown or misshapen one."""
    import torch

    own = unique_tensors(model)
    problems = [f"{n} is missing" for n in own if n not in tensors]
    problems += [f"{n} is not part of this model" for n in tensors if n not in own]
    problems += [
        f"{n} has shape {tuple(tensors[n].shape)}, the model wants {tuple(p.shape)}"
        for n, p in own.items()
        if n in tensors and tensors[n].shape != p.shape
    ]
    problems += [
        f"{n} holds {str(tensors[n].dtype).removeprefix('torch.')}, accepted: floating-point numbers"
        for n, p in own.items()
        if n in tensors and p.is_floating_point() and not tensors[n].is_floating_point()
    ]
    if problems:
        raise ModelFolderError(f"{where}: " + "; ".join(problems))
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def average_tensors(folders: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several model folders, summed in float64."""
    folders = list(folders)
    total: dict[str, Tensor] = {}
    for folder in folders:
        verify(folder)
        for name, tensor in load_file(folder / "model.safetensors").items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}
