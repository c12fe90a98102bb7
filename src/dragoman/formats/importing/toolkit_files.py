"""The files of a toolkit's model: a checkpoint, settings, vocabularies and sentencepiece models in one folder."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.errors import UsageError
from dragoman.formats.importing.checkpoint import Checkpoint, load_weights
from dragoman.formats.importing.family import part
from dragoman.formats.importing.marian_items import parse_yaml
from dragoman.formats.importing.unpickler import PickledCheckpoint, plain
from dragoman.io.reading import read_text

_ADVICE = "Copy the folder again, completely."
_MAX_YAML, _MAX_VOCABULARY = 1 << 20, 1 << 26
_JOEY_SETTINGS, _DICTIONARIES, _VOCABULARY = "config.yaml", "dict*.txt", "vocab.json"
_EOLE_WEIGHTS, _OPTIMIZER = "model.[0-9][0-9].safetensors", "optimizer.pt"


def find_checkpoints(source: Path) -> list[Path]:
    """Return the checkpoints of a folder, only the best one if it is marked, or the file itself; [] if none."""
    if source.is_file():
        return [source] if _is_checkpoint(source) else []
    files = [path for pattern in ("*.ckpt", "*.pt") for path in sorted(source.glob(pattern)) if _is_checkpoint(path)]
    return [path for path in files if path.name in ("best.ckpt", "checkpoint_best.pt")] or files


def opened_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint that `find_checkpoints` has found."""
    if path.suffix == ".ckpt":
        return JoeyCheckpoint(path)
    return FairseqCheckpoint(path) if any(path.parent.glob(_DICTIONARIES)) else OpenNMTCheckpoint(path)


def _is_checkpoint(path: Path) -> bool:
    """JoeyNMT has its settings beside a checkpoint; fairseq's and OpenNMT-py's contain them."""
    if path.suffix == ".ckpt":
        return path.is_file() and (path.parent / _JOEY_SETTINGS).exists()
    return path.suffix == ".pt" and path.is_file() and path.name != _OPTIMIZER


def is_eole(source: Path) -> bool:
    return (source / _VOCABULARY).exists() and any(source.glob(_EOLE_WEIGHTS))


class ToolkitCheckpoint(Checkpoint):
    """A checkpoint; each property raises UsageError if its file is missing or damaged.

    part: key of the weights in its content.
    """

    part = ""

    def __init__(self, model: Path) -> None:
        super().__init__(model.parent)
        self.model = model

    @cached_property
    def pickled(self) -> PickledCheckpoint:
        return PickledCheckpoint(self.model)

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        content = self.pickled.content
        weights = content.get(self.part) if isinstance(content, Mapping) else None
        if not isinstance(weights, Mapping):
            raise UsageError(f"{self.model}: no {self.part!r}, the weights; accepted: checkpoints of training")
        return self.pickled.tensors(weights)

    def text(self, name: str) -> str:
        return read_text(self.folder / name, UsageError, _ADVICE, _MAX_VOCABULARY)


class JoeyCheckpoint(ToolkitCheckpoint):
    """A model of JoeyNMT: `*.ckpt`, `config.yaml`, `src_vocab.txt`, `trg_vocab.txt`."""

    part = "model_state"

    @cached_property
    def settings(self) -> dict[str, Any]:
        path = self.folder / _JOEY_SETTINGS
        return parse_yaml(read_text(path, UsageError, _ADVICE, _MAX_YAML), str(path))


class FairseqCheckpoint(ToolkitCheckpoint):
    """A model of fairseq: `*.pt`, which contains the settings, and `dict.*.txt`."""

    part = "model"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The options of the model, with the languages and the names of the tokenizers.

        They are a Namespace `args`, or the groups of a configuration `cfg`.
        """
        stored = self.pickled.content
        content = plain({key: stored.get(key) for key in ("args", "cfg")} if isinstance(stored, Mapping) else {})
        groups = content.get("cfg") or {}
        model = groups.get("model") if isinstance(groups, dict) else None
        if not isinstance(model, dict):
            if not isinstance(content.get("args"), dict):
                raise UsageError(f"{self.model}: no options ('args' or 'cfg'); accepted: checkpoints of training")
            return dict(content["args"])
        options = {**_flat(model), **{key: part(groups, "task").get(key) for key in ("source_lang", "target_lang")}}
        return options | {key: part(groups, key).get("_name") for key in ("bpe", "tokenizer")}


class OpenNMTCheckpoint(ToolkitCheckpoint):
    """A model of OpenNMT-py 3: `*.pt`, with settings, vocabularies, and weights that are not in `*.NN.safetensors`."""

    part = "model"

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """The weights, those of the output layer as `generator.*`."""
        content = self._content
        weights, output = content.get(self.part), content.get("generator")
        if not isinstance(weights, Mapping):
            return _read_shards(self.folder, f"{glob.escape(self.model.stem)}.[0-9][0-9].safetensors")
        layer = {f"generator.{name}": value for name, value in output.items()} if isinstance(output, Mapping) else {}
        return self.pickled.tensors({**weights, **layer})

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The options of the training."""
        options = plain(self._content["opt"])
        if not isinstance(options, dict):
            raise UsageError(f"{self.model}: 'opt' is not a list of options; accepted: checkpoints of OpenNMT-py 3")
        return options

    @cached_property
    def vocabulary(self) -> dict[str, Any]:
        lists = plain(self._content["vocab"])
        return lists if isinstance(lists, dict) else {}

    @property
    def _content(self) -> Mapping[str, Any]:
        content = self.pickled.content
        if not isinstance(content, Mapping) or not {"opt", "vocab"} <= content.keys():
            raise UsageError(
                f"{self.model}: no 'opt' and 'vocab'; accepted: checkpoints of OpenNMT-py 3, and of fairseq "
                f"beside their dictionaries ({_DICTIONARIES})"
            )
        return content


class EoleCheckpoint(Checkpoint):
    """A model of eole: `config.json`, `vocab.json`, `model.NN.safetensors`."""

    @cached_property
    def vocabulary(self) -> dict[str, Any]:
        return self.json(_VOCABULARY)

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        return _read_shards(self.folder, _EOLE_WEIGHTS)


def _read_shards(folder: Path, pattern: str) -> Mapping[str, Tensor]:
    files = sorted(folder.glob(pattern))
    if not files:
        raise UsageError(f"{folder}: no weights; accepted: {pattern}")
    return load_weights(files)


def _flat(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the groups "encoder", "decoder" and "quant_noise" as prefixes of names."""
    flat = dict(options)
    for group in ("encoder", "decoder", "quant_noise"):
        if isinstance(inner := flat.pop(group, None), Mapping):
            flat |= {f"{group}_{key}": value for key, value in inner.items()}
    return flat
