"""The files of a model in Marian's own formats: which file of a folder is what.

model.npz or model.bin      weights, and the settings of the model as an item in YAML
decoder.yml, config.yml     settings of decoding, optional: names of the other files, beam size
vocab.spm                   a sentencepiece model for both sides, or one per side; its ids are those of the model
vocab.yml                   or a list of pieces with their ids, beside source.spm and target.spm (OPUS-MT)
lex.s2t.bin                 a shortlist, optional
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.errors import UsageError
from dragoman.extras import extra_package
from dragoman.formats.importing.checkpoint import Checkpoint
from dragoman.formats.importing.marian_files.items import ADVICE, SETTINGS, is_binary_model, read_items
from dragoman.formats.importing.marian_files.lexical import is_lexical_shortlist
from dragoman.io.reading import read_text

_MAX_YAML, _MAX_VOCABULARY = 1 << 20, 1 << 26
_NOT_MODELS = re.compile(r".*\.(optimizer|progress)\.npz")


def find_models(source: Path) -> list[Path]:
    """Return the Marian model files of a folder, or the file itself; [] if there are none."""
    if source.is_file():
        return [source] if source.suffix in (".npz", ".bin") else []
    files = sorted(source.glob("*.npz")) + sorted(source.glob("*.bin"))
    return [
        file
        for file in files
        if file.is_file() and not _NOT_MODELS.fullmatch(file.name) and (file.suffix == ".npz" or is_binary_model(file))
    ]


class MarianCheckpoint(Checkpoint):
    """A Marian model; each property raises UsageError if its file is missing or damaged."""

    def __init__(self, model: Path) -> None:
        super().__init__(model.parent)
        self.model = model

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the model."""
        found = self._items.get(SETTINGS)
        if found is None:
            raise UsageError(f"{self.model}: no item {SETTINGS}, the settings of the model; accepted: models with one")
        try:
            text = bytes(found.astype(np.uint8)).rstrip(b"\0").decode()
        except UnicodeDecodeError:
            raise UsageError(f"{self.model}: {SETTINGS} is not UTF-8. {ADVICE}") from None
        return parse_yaml(text, f"{self.model}, {SETTINGS}")

    @cached_property
    def generation(self) -> dict[str, Any]:
        """The settings of decoding: the YAML file of the folder that names this model, or is named like it."""
        named, other = [], []
        for path in sorted(self.folder.glob("*.yml")) + sorted(self.folder.glob("*.yaml")):
            if "vocab" in path.name or path.stat().st_size > _MAX_YAML:
                continue
            found = parse_yaml(read_text(path, UsageError, ADVICE, _MAX_YAML), str(path))
            models = map(_file_name, _listed(found.get("models")))
            if self.model.name in models or path.name.startswith(self.model.name):
                named.append(found)
            elif "vocabs" in found and "models" not in found:
                other.append(found)
        return (named or other or [{}])[0]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))
            for name, array in self._items.items()
            if not name.startswith("special:")
        }

    @cached_property
    def vocabularies(self) -> list[Path]:
        """The vocabulary files of the source and of the target; of one file for both, the same path twice."""
        names = [_file_name(name) for name in _listed(self.generation.get("vocabs"))]
        if len(names) == 2:
            return [self.folder / name for name in names]
        # Beside a list of pieces, sentencepiece models have other ids.
        files = [file.name for file in sorted(self.folder.glob("*vocab*.yml"))]
        files = files or [file.name for file in sorted(self.folder.glob("*.spm"))]
        if len(files) == 1 and not files[0].startswith(("src", "trg", "source", "target")):
            return [self.folder / files[0]] * 2
        for source, target in (("src", "trg"), ("source", "target")):
            sides = [[name for name in files if name.startswith(side)] for side in (source, target)]
            if len(files) == 2 and all(len(side) == 1 for side in sides):
                return [self.folder / side[0] for side in sides]
        raise UsageError(
            f"{self.folder}: the vocabularies of source and target are not known ({', '.join(files) or 'no *.spm'}); "
            "accepted: one *.spm for both, srcvocab*.spm and trgvocab*.spm, or two names under 'vocabs' of decoder.yml"
        )

    @cached_property
    def shortlist(self) -> Path | None:
        """The shortlist that the settings of decoding name, or the only one of the folder."""
        names = [_file_name(name) for name in _listed(self.generation.get("shortlist"))[:1]]
        found = [self.folder / name for name in names if (self.folder / name).is_file()]
        found = found or [file for file in sorted(self.folder.glob("*.bin")) if is_lexical_shortlist(file)]
        return found[0] if len(found) == 1 and is_lexical_shortlist(found[0]) else None

    @cached_property
    def _items(self) -> dict[str, Any]:
        return read_items(self.model)

    def pieces(self, path: Path) -> dict[str, Any]:
        """Return the content of a vocabulary in YAML: ids by piece."""
        return parse_yaml(read_text(path, UsageError, ADVICE, _MAX_VOCABULARY), str(path))


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Parse YAML that creates nothing but numbers, texts, lists and mappings."""
    yaml = extra_package("yaml", "formats", "the import of settings in YAML")
    try:
        found = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{where}: not valid YAML: {reason}. {ADVICE}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{where}: not a mapping of settings. {ADVICE}")
    return {str(key): value for key, value in found.items()}


def _listed(value: object) -> Sequence[str]:
    """Return the texts of a setting that is a text or a list."""
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]


def _file_name(path: str) -> str:
    """Return the last part of a path of another machine; the files of a model are in one folder."""
    return re.split(r"[/\\]", path)[-1]
