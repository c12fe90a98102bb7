"""The work of a bulk translation: how lines become bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dragoman.decoding.shortlist import SHORTLIST, Shortlist
from dragoman.errors import ModelFolderError

if TYPE_CHECKING:
    from dragoman.pipelines.translation import Translation

__all__ = ["Chunk", "Done", "Form", "Job", "Translated", "Worker", "form_of", "model_sha256", "rendered"]

Form = Literal["text", "nbest", "jsonl", "row"]
"""How a translation is written: its text; K lines of score, tab, text; all of it as JSON; the columns of a table."""


@dataclass(frozen=True)
class Job:
    """How lines are translated.

    load: device and the like, as `Translator.load` takes them.  search: settings of the search by name, the model's own
    where not given.  prefix: how every translation must start.
    """

    model: Path
    load: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    prefix: str | None = None
    jsonl: bool = False

    def settings(self) -> dict[str, Any]:
        """What the bytes of a translation depend on, besides the model and the path (`Done`).

        Raises UsageError and ModelFolderError.
        """
        from dragoman.decoding.settings import SearchSettings
        from dragoman.models.model_folder import read_config, wrong_model

        config = read_config(self.model)
        if config.data.kind != "parallel":
            raise wrong_model(self.model, config, "does not translate")
        search = asdict(SearchSettings.of(config.search, **self.search))
        device = str(self.load.get("device", "cpu")).partition(":")[0]
        return {"device": device, **search, "prefix": self.prefix, "form": form_of(self.jsonl, search["nbest"])}


@dataclass(frozen=True)
class Chunk:
    """Some lines of a shard that are translated at once, and alone."""

    shard: str
    number: int
    texts: list[str]
    form: Form


@dataclass(frozen=True)
class Done:
    """A chunk translated.  lines: how many there were; flags: how often each was seen; payload: what is written; path:
    by which path and in which precision it was translated.
    """

    lines: int
    flags: dict[str, int]
    payload: bytes
    path: str


Translated = Generator[tuple[Chunk, Done], None, None]
"""Chunks as they come back, in whatever order; closed when no more are wanted."""


def form_of(jsonl: bool, nbest: int) -> Form:
    """How lines of text are written."""
    if jsonl:
        return "jsonl"
    return "nbest" if nbest > 1 else "text"


def rendered(translation: Translation, form: Form) -> str:
    """A translation as it is written, without the last "\\n"."""
    match form:
        case "text":
            return translation.text
        case "nbest":
            return "\n".join(f"{one.score:.4f}\t{one.text}" for one in translation.nbest)
        case "jsonl":
            return json.dumps(translation.to_json(), ensure_ascii=False)
        case "row":
            row = {"translation": translation.text, "score": translation.score, "flags": translation.flags}
            return json.dumps(row | {"nbest": [one.text for one in translation.nbest]})


def model_sha256(model: Path, shortlist: bool = False) -> dict[str, str]:
    """The sha256 of each file of a model folder that a translation depends on, its shortlist among them if asked for.

    Raises ModelFolderError, and UsageError where there is no shortlist.
    """
    from dragoman.models.model_folder import read_meta

    digests = read_meta(model)["sha256"]
    found = {name: digest for name, digest in sorted(digests.items()) if not name.startswith("training.")}
    if shortlist:
        found[SHORTLIST] = Shortlist.read(model / SHORTLIST, digests["model.safetensors"]).sha256
    return found


class Worker:
    """A translator with its orders; `sha256` (as of `model_sha256`) is what the model must be, on whichever machine."""

    def __init__(self, job: Job, sha256: Mapping[str, str]) -> None:
        from dragoman.pipelines.translation import Translator

        if model_sha256(job.model, SHORTLIST in sha256) != sha256:
            raise ModelFolderError(f"{job.model}: not the model that this job began with; put that one back")
        self.job = job
        load = {"device": "cpu", **job.load}
        if load["device"] != "cpu":  # a name that the engine takes, without torch
            from dragoman.device import resolve_device

            load["device"] = resolve_device(load["device"])
        self.translator = Translator.load(job.model, **load)
        self.description = self.translator.description
        self.path = ", ".join(self.description.split(", ")[:2])  # not the number of threads, nor the reason

    def translate(self, texts: Sequence[str], form: Form) -> Done:
        """All of the texts, in order."""
        flags: Counter[str] = Counter()
        lines = []
        for translation in self.translator.translate(texts, prefix=self.job.prefix, **self.job.search):
            flags.update(translation.flags)
            lines.append(f"{rendered(translation, form)}\n".encode())
        return Done(len(lines), dict(flags), b"".join(lines), self.path)
