"""Model folders and run folders on disk: nothing half-written, nothing trusted unread, no pickle.

Torch is imported where weights are read or written only: the engine finds its packed model without it.

A model folder holds `config.json`, `model.safetensors`, the tokenizer's file(s) and `meta.json` (format version,
package version, step, scores, sha256 of each file); while training also `training.safetensors` and `training.json`.
It is written under a temporary name, flushed, and renamed.  A run folder holds `checkpoints/<step>/` and the pointers
`best`, `last`, `average`: small text files that name one of them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dragoman
from dragoman.config import Config, parse_config
from dragoman.data.tokenizer import Tokenizer
from dragoman.data.vocabulary import Vocabulary, load_vocabulary
from dragoman.errors import ConfigError, ModelFolderError, TrainingError, UsageError

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
    "load_model",
    "load_network",
    "load_tensors",
    "point",
    "read_config",
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
        "package_version": dragoman.__version__,
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
        _flush_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        megabytes = sum(map(len, content.values())) / 1e6
        raise TrainingError(
            f"{folder} could not be written: {_why(error)}. It needs {megabytes:.1f} MB. What was saved before is "
            "untouched; make room (a lower train.keep helps) and run the same command again to go on from there."
        ) from error


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
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        _write_flushed(unfinished, data)
        unfinished.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise TrainingError(f"{path} could not be written: {_why(error)}. What was there is untouched.") from error


def _why(error: OSError) -> str:
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)


def _write_flushed(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    """The folder that a pointer names, or None."""
    file = run / name
    if not file.is_file():
        return None
    return run / file.read_text(encoding="utf-8").strip()


def steps_in(run: Path) -> list[Path]:
    """The checkpoints of a run by step, oldest first."""
    folder = run / "checkpoints"
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.name.isdigit() and p.is_dir()), key=lambda p: int(p.name))


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
    what = "a file, not a model folder" if path.is_file() else "no such folder"
    raise ModelFolderError(f"{path}: {what}; train a model first, or name the folder that 'dragoman train' wrote")


def read_meta(folder: Path) -> dict[str, Any]:
    """`meta.json` of a model folder.  Raises `ModelFolderError` when it is missing, cut or of a later format."""
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        version = int(meta["format_version"])
        names = set(meta["sha256"])
    except FileNotFoundError:
        raise ModelFolderError(f"{folder}: meta.json is missing; copy the folder again, whole") from None
    except (ValueError, LookupError, TypeError) as error:
        raise ModelFolderError(f"{folder}/meta.json: cannot be read ({error}); copy the folder again, whole") from None
    if version > FORMAT_VERSION:
        raise ModelFolderError(
            f"{folder}: format version {version}, and this Dragoman {dragoman.__version__} reads up to "
            f"{FORMAT_VERSION}; "
            f"upgrade (the folder was written by Dragoman {meta.get('package_version')})"
        )
    unlisted = sorted({"config.json", "model.safetensors"} - names)
    if unlisted:
        raise ModelFolderError(f"{folder}/meta.json: no sha256 of {', '.join(unlisted)}; copy the folder again, whole")
    return meta


def verify(folder: Path, but: Collection[str] = ()) -> dict[str, Any]:
    """Check every file of a model folder against its sha256; return the meta.  Raises with all problems at once.

    but: names of files that are not read.
    """
    meta = read_meta(folder)
    problems = []
    for name, expected in meta["sha256"].items():
        if name in but:
            continue
        file = folder / name
        if not file.is_file():
            problems.append(f"{name} is missing")
            continue
        with file.open("rb") as handle:
            if hashlib.file_digest(handle, "sha256").hexdigest() != expected:
                problems.append(
                    f"{name} is cut or altered ({file.stat().st_size:,} bytes; its sha256 is not the one in meta.json)"
                )
    if problems:
        raise ModelFolderError(f"{folder}: {'; '.join(problems)}. Copy the folder again, or use an earlier checkpoint.")
    return meta


def build_for(config: Config, vocabulary: Vocabulary) -> Network:
    """The fresh model of a configuration and its vocabulary."""
    from dragoman.models.build import build_model

    return build_model(
        config.model, vocabulary.source_size, vocabulary.target_size, shared=vocabulary.shared, seed=config.train.seed
    )


def read_config(path: str | Path) -> Config:
    """The configuration of a model or run folder.  Raises `ModelFolderError`."""
    folder = find_model(path)
    try:
        return parse_config(json.loads((folder / "config.json").read_bytes()), where=str(folder / "config.json"))
    except FileNotFoundError:
        raise ModelFolderError(f"{folder}: config.json is missing; copy the folder again, whole") from None
    except (ConfigError, ValueError) as error:
        raise ModelFolderError(f"{folder}/config.json: {error}") from None


def load_network(path: str | Path, device: str | torch.device = "cpu") -> tuple[Network, Vocabulary, Config]:
    """Network (in evaluation mode), vocabulary and configuration of a model or run folder, every file checked."""
    folder = find_model(path)
    verify(folder)
    config = read_config(folder)
    vocabulary = load_vocabulary(folder)
    network, tensors = build_for(config, vocabulary), load_file(folder / "model.safetensors")
    _check_vocabulary(network, vocabulary, tensors, folder)
    load_tensors(network, tensors, folder)
    return network.to(device).eval(), vocabulary, config


def _check_vocabulary(network: Network, vocabulary: Vocabulary, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Raise where embeddings have another number of rows than the vocabulary has ids."""
    for name, own in unique_tensors(network).items():
        given = tensors.get(name)
        of_words = ("embedding" in name or name.startswith("output.")) and own.dim() == 2
        if not of_words or len(own) not in (vocabulary.source_size, vocabulary.target_size):
            continue
        if given is not None and given.dim() == 2 and len(given) != len(own) and given.size(1) == own.size(1):
            raise ModelFolderError(
                f"{folder}: the vocabulary has {len(own):,} ids, and {name} in model.safetensors has {len(given):,} "
                "rows: the tokenizer and the weights belong to different models; copy the folder again, whole"
            )


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
    if problems:
        raise ModelFolderError(f"{where}: " + "; ".join(problems))
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def load_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.  Raises `ModelFolderError` where it is anything else, a pickle for one."""
    import safetensors.torch
    from safetensors import SafetensorError

    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise ModelFolderError(f"{path}: missing; copy the folder again, whole") from None
    except (SafetensorError, OSError) as error:
        raise ModelFolderError(f"{path}: not a safetensors file ({error}); no other format is read") from None


def average_tensors(folders: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several model folders, summed in float64."""
    folders = list(folders)
    total: dict[str, Tensor] = {}
    for folder in folders:
        verify(folder)
        for name, tensor in load_file(folder / "model.safetensors").items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}
