"""The model folders of a server's configuration, and their properties before they are loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.config.server import ModelEntry, SearchOverrides
from dragoman.decoding.loader import load_shortlist
from dragoman.decoding.native.backend import NativeBackend
from dragoman.decoding.settings import SearchSettings
from dragoman.decoding.shortlist import Shortlist
from dragoman.errors import ModelFolderError, UsageError
from dragoman.models.model_folder import distinct_names, find_model, read_config, read_meta, wrong_model
from dragoman.pipelines.translation import Translator
from dragoman.tokenizers import Tokenizer, load_vocabulary
from dragoman.tokenizers.listed_pieces import PIECES_FILE
from dragoman.tokenizers.templates import LANGUAGES_FILE

_WEIGHTS = "model.safetensors"
_LANGUAGES = (LANGUAGES_FILE, PIECES_FILE)
"""Files of models that may have several languages."""


@dataclass(frozen=True)
class ModelSource:
    """A model that translates.

    folder: without symbolic links, so that a model is read from one folder even if a link changes.  languages: codes of
    source and target; trained: those of its training data.  beam: default width of the search.  fingerprint: of all
    files, and of the shortlist if it is used.  between: codes of the model for source and target, if it has several
    languages.  search: settings that replace those of the model.  shortlist: whether translations are restricted to the
    shortlist of the model.  device: device that the model runs on.
    """

    folder: Path
    name: str
    languages: tuple[str, str]
    trained: tuple[str, str]
    beam: int
    fingerprint: str
    between: tuple[str | None, str | None] | None = None
    search: SearchOverrides = field(default_factory=SearchOverrides)
    shortlist: bool = False
    device: str = "cpu"

    def load(self) -> tuple[Translator, str]:
        """Return the translator, and the fingerprint of the files in the folder, which may have changed.

        Raises ModelFolderError, and UsageError if the shortlist is missing.
        """
        meta = read_meta(self.folder)
        translator = Translator.load(self.folder, self.device, shortlist=self.shortlist)
        if translator.languages != self.trained:
            languages = " to ".join(map(str, translator.languages))
            raise ModelFolderError(
                f"{self.folder}: replaced by a model from {languages}; reload the configuration of the server (SIGHUP)"
            )
        if self.between is not None:
            translator.tokenizer = translator.tokenizer.between(*self.between)
        translator.describe_data(translator.profile, self.languages)
        translator.settings = SearchSettings.of(translator.settings, **self.search.given)
        return translator, _fingerprint(meta, translator.backend.shortlist)

    @property
    def size(self) -> tuple[int, bool]:
        """Bytes of the weights in memory, and whether they are known; otherwise they are an upper limit.

        They are known once the weights have been packed, which only the native engine needs.
        """
        packed = [("packed/int8.bin", True)] if self.device == "cpu" else []
        for name, known in [*packed, (_WEIGHTS, False)]:
            file = self.folder / name
            if file.is_file():
                return file.stat().st_size, known
        return 0, False

    def loaded_size(self, translator: Translator) -> int:
        """Return the bytes of the weights of a loaded translator."""
        backend = translator.backend
        if isinstance(backend, NativeBackend):
            return backend.engine.content.nbytes
        from dragoman.decoding.pytorch.backend import TorchBackend

        assert isinstance(backend, TorchBackend)
        return sum(parameter.nbytes for parameter in backend.model.parameters())


def model_sources(entries: Sequence[ModelEntry], device: str = "cpu") -> list[ModelSource]:
    """Return the translation models, to be loaded on a device; language models are for the viewer only.

    Raises UsageError and ModelFolderError.
    """
    paths = [Path(entry.path).resolve() for entry in entries]
    keys = [(path, entry.source, entry.target) for path, entry in zip(paths, entries, strict=True)]
    repeated = sorted({str(key[0]) for key in keys if keys.count(key) > 1})
    if repeated:
        raise UsageError(
            f"models specified twice: {', '.join(repeated)}; specify each model once, or one with several languages "
            "once per pair of `source` and `target`"
        )
    names = dict(zip(dict.fromkeys(paths), distinct_names(list(dict.fromkeys(paths))), strict=True))
    sources = []
    for path, entry in zip(paths, entries, strict=True):
        folder = find_model(Path(entry.path)).resolve()
        config = read_config(folder)
        if config.data.kind == "parallel":
            trained = config.parallel.source_language, config.parallel.target_language
            between = _between(folder, entry)
            if between is None and paths.count(path) > 1:
                raise UsageError(f"models specified twice: {path}, which has one direction; specify it once")
            codes = between or (None, None)
            languages = entry.source or codes[0] or trained[0], entry.target or codes[1] or trained[1]
            name = names[path] if paths.count(path) == 1 else f"{names[path]} {languages[0]}-{languages[1]}"
            fingerprint = _fingerprint(read_meta(folder), load_shortlist(folder) if entry.shortlist else None)
            beam = entry.search.beam or config.search.beam
            sources.append(
                ModelSource(
                    folder, name, languages, trained, beam, fingerprint, between, entry.search, entry.shortlist, device
                )
            )
        elif config.data.kind != "text":
            raise wrong_model(Path(entry.path), config, "neither translates nor continues texts")
    return sources


def _between(folder: Path, entry: ModelEntry) -> tuple[str | None, str | None] | None:
    """Return the codes of a model with several languages for an entry, None for a model of one direction.

    Raises UsageError for languages that it lacks.
    """
    wanted = entry.model_source, entry.model_target
    tokenizer = load_vocabulary(folder) if any((folder / name).is_file() for name in _LANGUAGES) else None
    if not isinstance(tokenizer, Tokenizer) or not any(tokenizer.languages):
        if any(wanted):
            raise UsageError(f"{folder}: the model has one direction; omit model_source and model_target")
        return None
    pairs = zip(wanted, (entry.source, entry.target), tokenizer.languages, tokenizer.default_languages, strict=True)
    # A code of the server may be another one than that of the model: "en" and "eng_Latn".
    codes = [code or (public if public in known else default) for code, public, known, default in pairs]
    try:
        tokenizer.between(codes[0], codes[1])
    except UsageError as error:
        raise UsageError(f"{folder}: {error} (model_source, model_target)") from None
    return codes[0], codes[1]


def _fingerprint(meta: dict[str, Any], shortlist: Shortlist | None) -> str:
    """Return the SHA-256 of `meta.json`, which has the SHA-256 of all other files, and of a shortlist that is used."""
    files = [meta] if shortlist is None else [meta, shortlist.sha256]
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
