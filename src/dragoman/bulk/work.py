"""Units of work of a bulk translation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.decoding.shortlist import SHORTLIST, Shortlist
from dragoman.errors import ModelFolderError
from dragoman.pipelines.form import Form, format_translation, output_form

if TYPE_CHECKING:
    from dragoman.pipelines.glossary import Glossary


@dataclass(frozen=True)
class Job:
    """Model and options of a bulk translation.

    load: options of `Translator.load`.  search: search settings by name; default: those of the model.  prefix: the
    beginning of every translation.  verbose: with jsonl, also write the tokens and their log-probabilities.  split:
    whether to split lines into sentences; default: `Translator.splits_sentences`.  glossary: preferred terms.
    languages: `source_language` and `target_language` of a multilingual model; default: those of the model.
    """

    model: Path
    load: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    prefix: str | None = None
    jsonl: bool = False
    verbose: bool = False
    split: bool | None = None
    glossary: Glossary | None = None
    languages: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """Return everything that affects the output, except the model and the backend (`ChunkResult.backend`).

        Raises UsageError and ModelFolderError.
        """
        from dragoman.decoding.settings import SearchSettings
        from dragoman.models.model_folder import read_config, read_profile, wrong_model

        config = read_config(self.model)
        if not config.data.about.translates:
            raise wrong_model(self.model, config, "does not translate")
        search = asdict(SearchSettings.of(config.search, **self.search))
        device = str(self.load.get("device", "cpu")).partition(":")[0]
        profile = read_profile(self.model)
        split = self.split if self.split is not None else profile is not None and profile.single_sentences
        form = self.form(search["nbest"])
        given = {"device": device, **search, "prefix": self.prefix, "split": split, "form": form, **self.languages}
        return given if self.glossary is None else {**given, "glossary": self.glossary.sha256}

    def form(self, nbest: int) -> Form:
        return output_form(self.jsonl, nbest, self.verbose)


@dataclass(frozen=True)
class Chunk:
    """Consecutive lines of a shard, translated together."""

    shard: str
    number: int
    texts: list[str]
    form: Form


@dataclass(frozen=True)
class ChunkResult:
    """A translated chunk.  flags: count per flag; payload: output bytes; backend: name and precision of the backend."""

    lines: int
    flags: dict[str, int]
    payload: bytes
    backend: str


Results = Generator[tuple[Chunk, ChunkResult], None, None]
"""Translated chunks in any order; closed when no more are needed."""


def model_sha256(model: Path, shortlist: bool = False) -> dict[str, str]:
    """Return the sha256 of each file of a model folder that affects translations, with its shortlist if requested.

    Raises ModelFolderError, and UsageError if there is no shortlist.
    """
    from dragoman.models.model_folder import read_meta

    digests = read_meta(model)["sha256"]
    found = {name: digest for name, digest in sorted(digests.items()) if not name.startswith("training.")}
    if shortlist:
        found[SHORTLIST] = Shortlist.read(model / SHORTLIST, digests["model.safetensors"]).sha256
    return found


class Worker:
    """Translates chunks of a job on any machine.  sha256: digests that the model must have (see `model_sha256`)."""

    def __init__(self, job: Job, sha256: Mapping[str, str]) -> None:
        from dragoman.pipelines.translation import Translator

        if model_sha256(job.model, SHORTLIST in sha256) != sha256:
            raise ModelFolderError(f"{job.model}: differs from the model that this job started with; restore that one")
        self.job = job
        self.translator = Translator.load(job.model, **job.load)
        self.description = self.translator.description
        self.backend = ", ".join(self.description.split(", ")[:2])  # without threads and reasons

    def translate(self, texts: Sequence[str], form: Form) -> ChunkResult:
        flags: Counter[str] = Counter()
        lines = []
        job = self.job
        for translation in self.translator.translate(
            texts, prefix=job.prefix, split=job.split, glossary=job.glossary, **job.languages, **job.search
        ):
            flags.update(translation.flags)
            lines.append(f"{format_translation(translation, form)}\n".encode())
        return ChunkResult(len(lines), dict(flags), b"".join(lines), self.backend)
