"""Model folders and run folders on disk: written atomically, verified when read, free of pickle.

A model folder contains `config.json`, `model.safetensors`, the file(s) of the tokenizer and `meta.json` (format
version, package version, step, scores, sha256 of each file); for translation also `profile.json` (statistics of the
training data), and during training `training.safetensors` and `training.json`.  A run folder contains
`checkpoints/<step>/` and the pointers `best`, `last` and `average`: small text files with the path of a checkpoint.

Torch is imported only where weights are read or written: the native backend does not need it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman._version import __version__
from dragoman.config import Config, parse_config
from dragoman.data.profile import PROFILE, TrainingProfile
from dragoman.errors import ConfigError, ModelFolderError, TrainingError, UsageError, clip
from dragoman.io.model_files import FORMAT_VERSION as FORMAT_VERSION
from dragoman.io.model_files import find_model as find_model
from dragoman.io.model_files import last_stage as last_stage
from dragoman.io.model_files import list_checkpoints as list_checkpoints
from dragoman.io.model_files import read_meta as read_meta
from dragoman.io.model_files import read_pointer as read_pointer
from dragoman.io.model_files import runs_inside as runs_inside
from dragoman.io.model_files import verify as verify
from dragoman.io.reading import COPY_AGAIN, read_json
from dragoman.io.weights import TensorFile, tensor_order, write_tensors
from dragoman.io.writing import atomic_folder, is_full, not_written, write_file
from dragoman.registry import check_parts, parts_of
from dragoman.tokenizers import Vocabulary, load_vocabulary

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from dragoman.models.seq2seq import Network


_MOST_SHOWN = 30


def write_folder(folder: Path, files: Mapping[str, bytes], meta: Mapping[str, Any]) -> None:
    """Write `files` and a `meta.json` with their sha256 as `folder`, atomically.

    Raises TrainingError if the folder cannot be written; an earlier version is unchanged.
    """
    with unfinished_folder(folder, files, meta):
        pass


@contextmanager
def unfinished_folder(
    folder: Path, files: Mapping[str, bytes], meta: Mapping[str, Any], size: int = 0
) -> Generator[tuple[Path, dict[str, str]], None, None]:
    """As `write_folder`, but yield the temporary folder, and the sha256 by name, to add files with `size` bytes."""
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    meta = {"format_version": FORMAT_VERSION, "package_version": __version__, **meta, "sha256": sha256}
    try:
        with atomic_folder(folder) as unfinished:
            for name, content in files.items():
                (unfinished / name).write_bytes(content)
            yield unfinished, sha256
            (unfinished / "meta.json").write_bytes(json.dumps(meta, indent=1, ensure_ascii=False).encode())
    except OSError as error:
        raise not_saved(folder, error, sum(map(len, files.values())) + size) from error


def not_saved(folder: Path, error: OSError, size: int) -> TrainingError:
    """Return the error for a model folder of `size` bytes that could not be written."""
    also = f"It needs {size / 1e6:.1f} MB. What was saved before is untouched."
    full = " A lower train.keep needs less space; the same command, run again, resumes from the last checkpoint."
    is_checkpoint = folder.parent.name == "checkpoints"
    return TrainingError(not_written(folder, error, also) + full * (is_full(error) and is_checkpoint))


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name, a tied parameter only under its first name."""
    persistent = model.state_dict().keys()
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    return tensors | {name: b for name, b in model.named_buffers() if name in persistent}


def save_model(
    folder: Path,
    config: Config,
    vocabulary: Vocabulary,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    training: Mapping[str, bytes | Mapping[str, Tensor]] | None = None,
    profile: TrainingProfile | None = None,
) -> None:
    """Write a model folder.

    training: files with the state of the optimizer, which resuming needs; of tensors, safetensors files are made.
    """
    if registered := parts_of(config):
        meta = {"parts": registered, **meta}
    files, groups = described_files(config, vocabulary, profile), {"model.safetensors": tensors}
    for name, content in (training or {}).items():
        if isinstance(content, bytes):
            files[name] = content
        else:
            groups[name] = content
    size = sum(tensor.numel() * tensor.element_size() for group in groups.values() for tensor in group.values())
    with unfinished_folder(folder, files, meta, size) as (unfinished, sha256):
        for file, group in groups.items():  # without a copy of all tensors as bytes
            parts = (group[name].contiguous().cpu() for name in tensor_order(group))
            sha256[file] = write_tensors(unfinished / file, group, parts)


def described_files(config: Config, vocabulary: Vocabulary, profile: TrainingProfile | None) -> dict[str, bytes]:
    """Return the files of a model folder without its weights and `meta.json`."""
    return {
        "config.json": config.model_dump_json(indent=1).encode(),
        **vocabulary.files(),
        **({} if profile is None else {PROFILE: profile.file()}),
    }


def write_pointer(run: Path, name: str, target: Path) -> None:
    """Set the pointer `name` of a run folder to `target`, atomically."""
    write_file(run / name, f"{target.relative_to(run).as_posix()}\n".encode())


def build_for(config: Config, vocabulary: Vocabulary, *, initialize: bool = True) -> Network:
    """Return a new model for a configuration and its vocabulary, initialized by the seed.

    Raises UsageError if the memory does not suffice.
    """
    from dragoman.models.build import assemble, build_model
    from dragoman.models.size import check_memory

    sizes = config.model, vocabulary.source_size, vocabulary.target_size
    check_memory(*sizes, shared=vocabulary.shared)
    if not initialize:
        return assemble(*sizes, shared=vocabulary.shared)
    return build_model(*sizes, shared=vocabulary.shared, seed=config.train.seed)


def read_config(path: str | Path) -> Config:
    """Return the configuration of a model or run folder.  Raises ModelFolderError."""
    folder = find_model(path)
    check_parts(read_meta(folder).get("parts", ()), folder)
    document = read_json(folder / "config.json", ModelFolderError, COPY_AGAIN)
    try:
        return parse_config(document, where=str(folder / "config.json"), stored=True)
    except (ConfigError, ValueError) as error:
        raise ModelFolderError(f"{folder}/config.json: {error}") from None
    except RecursionError:
        raise ModelFolderError(f"{folder}/config.json: brackets nested too deeply. {COPY_AGAIN}") from None


def read_profile(path: str | Path) -> TrainingProfile | None:
    """Return the profile of the training data of a model or run folder; None if the model was saved without one.

    Raises ModelFolderError if it is damaged.
    """
    folder = find_model(path)
    return TrainingProfile.load(folder) if PROFILE in read_meta(folder)["sha256"] else None


def load_network(path: str | Path, device: str | torch.device = "cpu") -> tuple[Network, Vocabulary, Config]:
    """Return network (in evaluation mode), vocabulary and configuration of a model or run folder, after `verify`."""
    folder = find_model(path)
    verify(folder)
    config = read_config(folder)
    vocabulary = load_vocabulary(folder)
    network = build_for(config, vocabulary, initialize=False)
    load_tensors(network, TensorFile(folder / "model.safetensors"), folder, vocabulary)
    return network.to(device).eval(), vocabulary, config


def wrong_model(path: str | Path, config: Config, lacks: str) -> UsageError:
    """Return the error for a model that lacks a capability; lacks: e.g. "does not translate"."""
    return UsageError(
        f'{path}: this model {lacks}: its architecture is "{config.model.architecture}", trained on data of kind '
        f'"{config.data.kind}"; it is used by: {config.data.about.used_by}'
    )


def load_tensors(
    model: nn.Module, tensors: Mapping[str, Tensor], where: Path, vocabulary: Vocabulary | None = None
) -> None:
    """Copy `tensors` into the parameters and buffers of the same names.

    Raises ModelFolderError with every missing, unexpected or incompatible tensor; see `check_tensors`.
    """
    import torch

    parameters = unique_tensors(model)
    expected = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    stored = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    integers = {
        n: str(tensors[n].dtype).removeprefix("torch.")
        for n, p in parameters.items()
        if n in tensors and p.is_floating_point() and not tensors[n].is_floating_point()
    }
    check_tensors(expected, stored, integers, where, vocabulary)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def check_tensors(
    expected: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, tuple[int, ...]],
    integers: Mapping[str, str],
    where: Path,
    vocabulary: Vocabulary | None = None,
) -> None:
    """Raise ModelFolderError with the missing, unexpected and incompatible tensors of a file, the first 30 by name.

    expected, stored: shapes.  integers: dtypes of tensors that must hold floating-point numbers but do not.
    vocabulary: that of the model, if it was built for one.
    """
    problems = [f"{n} is missing" for n in expected if n not in stored]
    problems += [f"{n} is not part of this model" for n in stored if n not in expected]
    problems += [
        f"{n} has shape {stored[n]}, the model expects {shape}"
        for n, shape in expected.items()
        if n in stored and stored[n] != shape
    ]
    problems += [f"{n} holds {integers[n]}, accepted: floating-point numbers" for n in expected if n in integers]
    if problems:
        origin = vocabulary and (
            f". The model was built from config.json and a vocabulary of {vocabulary.source_size:,} source and "
            f"{vocabulary.target_size:,} target entries; if sizes differ, one of these files belongs to another model."
        )
        shown = [clip(problem, 200) for problem in problems[:_MOST_SHOWN]]
        more = f"; and {len(problems) - _MOST_SHOWN:,} more" if len(problems) > _MOST_SHOWN else ""
        raise ModelFolderError(f"{where}: {'; '.join(shown)}{more}{origin or ''}")


def average_tensors(folders: Sequence[Path], shares: Sequence[float] = ()) -> dict[str, Tensor]:
    """Return the mean of the weights of several model folders, summed in float64.  shares: of each; default: equal."""
    files = []
    for folder in folders:
        verify(folder)
        files.append(TensorFile(folder / "model.safetensors"))
    pairs = list(zip(files, shares or [1.0] * len(files), strict=True))
    sums = ((name, reduce(operator.add, (share * file[name].double() for file, share in pairs))) for name in files[0])
    return {name: (total / sum(share for _, share in pairs)).float() for name, total in sums}


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return the last components of different absolute paths, as few as make the names distinct."""
    candidates = (["/".join(path.parts[-count:]) for path in paths] for count in itertools.count(1))
    return next(names for names in candidates if len(set(names)) == len(paths))
