"""The configuration of a server: one TOML document, `dragoman serve --config`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from dragoman.config import limits
from dragoman.config.document import read_document
from dragoman.config.errors import problems_of
from dragoman.config.section import NotBoolean, Section, field
from dragoman.config.train import Expression
from dragoman.errors import ConfigError

_Count = Annotated[int, NotBoolean, Field(ge=1, le=1_000_000_000)]
_Size = Annotated[int, NotBoolean, Field(ge=0, le=1 << 30)]
_Seconds = Annotated[float, NotBoolean, Field(gt=0, le=86_400)]
_Code = Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*$")]
_Host = Annotated[str, Field(pattern=r"^(\*|(\*\.)?[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])$")]
_Origin = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s]+)$")]


class SearchOverrides(Section):
    """`search` of an entry of [[models]]: settings that replace those of the model (see `SearchConfig`)."""

    beam: limits.Beams | None = None
    shrink_beam: bool | None = None
    beam_threshold: limits.BeamThreshold | None = None
    recombine: limits.LastTokens | None = None
    early_end: limits.EarlyEnd | None = None
    alpha: limits.LengthPenalty | None = None
    max_extra: limits.ExtraTokens | None = None
    protect: tuple[Expression, ...] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The settings that replace others."""
        return self.model_dump(exclude_none=True)


class ModelEntry(Section):
    """An entry of [[models]]."""

    path: str = field(..., "run folder or model folder; relative paths start from the folder of the document")
    source: _Code | None = field(None, "code of the source language; default: that of the model")
    target: _Code | None = field(None, "code of the target language; default: that of the model")
    model_source: str | None = field(
        None, "source language of a model with several ones, as the model names it; default: `source`"
    )
    model_target: str | None = field(
        None, "target language of a model with several ones, as the model names it; default: `target`"
    )
    search: SearchOverrides = field(SearchOverrides(), "settings of the search that replace the model's")
    split_sentences: bool | None = field(
        None, "whether texts are split into sentences that are translated separately; default: that of the model"
    )
    shortlist: bool = field(False, "restrict translations to the model's shortlist, which `dragoman shortlist` creates")


class LimitsConfig(Section):
    """[limits]: limits of requests; requests beyond them are refused."""

    characters: _Count = field(100_000, "characters of all texts of a request")
    texts: _Count = field(1_000, "texts of a request")
    body: _Count = field(4 << 20, "bytes of a request")
    read_seconds: _Seconds = field(20.0, "time for the arrival of a request")
    seconds: _Seconds = field(120.0, "time for a translation")
    waiting_tokens: _Count = field(200_000, "source tokens of all requests in progress")


class ServerConfig(Section):
    """The whole document."""

    models: Annotated[list[ModelEntry], Field(min_length=1)] = field(
        ..., "models to serve; of two models of the same direction, the first one is used"
    )
    host: str = field("127.0.0.1", "address to listen on; 0.0.0.0 allows other machines")
    port: Annotated[int, NotBoolean, Field(ge=0, le=65_535)] = field(8000, "port to listen on; 0 = any free one")
    allowed_hosts: list[_Host] = field(
        [], "host names that requests may use, beside local ones; [] = any, unless `host` is local"
    )
    allowed_origins: list[_Origin] = field(
        [], "origins of other web pages that may use the server, or *; [] = any, unless `host` is local"
    )
    viewer: bool = field(True, "serve the page that shows how a translation is generated")
    device: str = field("cpu", "device of the models and of the viewer: cpu, cuda, cuda:1, ..., or auto")
    database: str = field("", 'SQLite file of API keys, glossaries and documents; "" = keys are not checked')
    require_key: bool = field(False, "refuse requests without an API key; requires `database`")
    metrics_key: bool = field(False, "refuse requests for /metrics without an API key; requires `database`")
    suggestions: str = field(
        "", 'file of the translations that clients suggest, JSON lines; "" = suggestions are refused'
    )
    log_requests: bool = field(False, "print one JSON object per request, without its texts")
    load: Literal["start", "first_use"] = field(
        "start", "when models are loaded; with `memory`, only as many at the start as there is room for"
    )
    memory: _Size = field(0, "MiB of the weights of all loaded models; 0 = no limit; others are unloaded beyond it")
    cache: _Size = field(0, "MiB of translations that are kept for texts that are sent again; 0 = none")
    drain: Annotated[float, NotBoolean, Field(ge=0, le=86_400)] = field(
        30.0, "seconds within which requests are finished when the server stops"
    )
    limits: LimitsConfig = LimitsConfig()

    @classmethod
    def parse(cls, document: dict[str, Any], where: str) -> ServerConfig:
        """Validate a document of nested dictionaries.  Raises ConfigError that lists all problems."""
        try:
            config = cls.model_validate(document)
        except ValidationError as error:
            raise ConfigError(where, problems_of(error, cls)) from None
        named = [key for key in ("require_key", "metrics_key") if getattr(config, key)]
        if named and not config.database:
            raise ConfigError(where, [f"{key} = true: needs a database of keys; specify `database`" for key in named])
        return config


def with_options(
    config: ServerConfig, shortlist: bool | None = None, split: bool | None = None, **search: Any
) -> ServerConfig:
    """Return a configuration in which these options, unless None, replace those of all models.

    search: settings of the search.  Raises ConfigError.
    """
    overrides = {name: value for name, value in search.items() if value is not None}
    try:
        SearchOverrides(**overrides)
    except ValidationError as error:
        raise ConfigError("dragoman serve", problems_of(error, SearchOverrides)) from None

    def changed(model: ModelEntry) -> ModelEntry:
        options: dict[str, Any] = {"search": SearchOverrides(**model.search.given | overrides)}
        given = {"shortlist": shortlist, "split_sentences": split}
        options |= {name: value for name, value in given.items() if value is not None}
        return model.model_copy(update=options)

    return config.model_copy(update={"models": [changed(model) for model in config.models]})


def read_server_config(path: Path, **overrides: Any) -> ServerConfig:
    """Read a document; overrides replace keys unless they are None.  Raises ConfigError.

    Relative paths of models, database and suggestions start from the folder of the document.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    config = ServerConfig.parse(read_document(path) | given, str(path))
    folder = path.parent
    models = config.models
    if overrides.get("models") is None:
        models = [model.model_copy(update={"path": str(folder / Path(model.path).expanduser())}) for model in models]
    files = {name: getattr(config, name) for name in ("database", "suggestions")}
    for name, file in files.items():
        if file and overrides.get(name) is None:
            files[name] = str(folder / Path(file).expanduser())
    return config.model_copy(update={"models": models, **files})
