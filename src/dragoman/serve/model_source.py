"""The models of a server's configuration: their folders, and what is known of them before they are loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.config.server import ModelEntry
from dragoman.decoding.native.backend import NativeBackend
from dragoman.errors import ModelFolderError, UsageError
from dragoman.models.model_folder import distinct_names, find_model, read_config, read_meta, wrong_model
from dragoman.pipelines.translation import Translator

__all__ = ["ModelSource", "model_sources"]

_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ModelSource:
    """A model that translates.

    folder: without symbolic links, so that a model is read from one folder even if a link changes.  languages: codes of
    source and target; trained: those of its training data.  beam: default width of the search.  fingerprint: of all
    files.
    """

    folder: Path
    name: str
    languages: tuple[str, str]
    trained: tuple[str, str]
    beam: int
    fingerprint: str

    def load(self) -> tuple[Translator, str]:
        """Return the translator, and the fingerprint of the files in the folder, which may be others than before.

        Raises ModelFolderError.
        """
        fingerprint = _fingerprint(self.folder)
        translator = Translator.load(self.folder, "cpu")
        if translator.languages != self.trained:
            found = " to ".join(map(str, translator.languages))
            raise ModelFolderError(
                f"{self.folder}: replaced by a model from {found}; reload the configuration of the server (SIGHUP)"
            )
        translator.describe_data(translator.profile, self.languages)
        return translator, fingerprint

    @property
    def size(self) -> tuple[int, bool]:
        """Bytes of the weights in memory, and whether they are known; otherwise they are an upper limit.

        They are known once the weights have been packed.
        """
        for name, known in (("packed/int8.bin", True), (_WEIGHTS, False)):
            file = self.folder / name
            if file.is_file():
                return file.stat().st_size, known
        return 0, False

    def loaded_size(self, translator: Translator) -> int:
        """Return the bytes of the weights of a loaded translator."""
        backend = translator.backend
        if isinstance(backend, NativeBackend):
            return backend.engine.content.nbytes
        return (self.folder / _WEIGHTS).stat().st_size


def model_sources(entries: Sequence[ModelEntry]) -> list[ModelSource]:
    """Return the models that translate; others are only for the viewer.

    Raises UsageError and ModelFolderError.
    """
    paths = [Path(entry.path).resolve() for entry in entries]
    repeated = sorted({str(path) for path in paths if paths.count(path) > 1})
    if repeated:
        raise UsageError(f"models specified twice: {', '.join(repeated)}; specify each model once")
    found = []
    for name, entry in zip(distinct_names(paths), entries, strict=True):
        folder = find_model(Path(entry.path)).resolve()
        config = read_config(folder)
        if config.data.kind == "parallel":
            trained = config.parallel.source_language, config.parallel.target_language
            languages = entry.source or trained[0], entry.target or trained[1]
            found.append(ModelSource(folder, name, languages, trained, config.search.beam, _fingerprint(folder)))
        elif config.data.kind != "text":
            raise wrong_model(Path(entry.path), config, "neither translates nor continues texts")
    return found


def _fingerprint(folder: Path) -> str:
    """Return the SHA-256 of `meta.json`, which has the SHA-256 of all other files."""
    return hashlib.sha256(json.dumps(read_meta(folder), sort_keys=True).encode()).hexdigest()
