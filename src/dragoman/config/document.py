"""The configuration document: `[data] [tokenizer] [model] [train] [search]`, read from TOML into frozen models.

A ConfigError lists all problems of a document, each with the accepted values and the nearest name.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError, ValidationInfo, model_validator

from dragoman.config.data import DataConfig, ImageData, ParallelData, move_root, resolve_path
from dragoman.config.errors import describe, shown
from dragoman.config.initial import initial_model, merge_sections, start_at
from dragoman.config.kinds import DATA_KINDS
from dragoman.config.limits import ADAM_RATES
from dragoman.config.model import (
    PRESETS,
    ConvolutionalConfig,
    EncoderOnlyConfig,
    ModelConfig,
    TransformerConfig,
    VisionConfig,
)
from dragoman.config.overrides import apply_overrides
from dragoman.config.recurrent import RecurrentEncoderConfig
from dragoman.config.section import Section, is_stored
from dragoman.config.tokenizer import TokenizerConfig
from dragoman.config.train import SearchConfig, TrainConfig
from dragoman.errors import ConfigError, DragomanError, ModelFolderError, UsageError, clip, nearest
from dragoman.extras import load_plug_ins
from dragoman.io.model_files import find_model, list_checkpoints, read_meta, verify
from dragoman.io.reading import COPY_AGAIN, as_path, open_regular, read_json
from dragoman.io.suffixes import plain_suffix

_LARGEST = 1_000_000
"""Largest configuration file in bytes: a thousand times the size of a recipe, and parsed within a second."""
_PARTS = 32
_KEY = r"""(?:[\w-]{1,99}|"[^"\n]{0,99}"|'[^'\n]{0,99}')"""
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:{_KEY}[ \t]*\.[ \t]*){{{_PARTS}}}")
"""A dotted key that would take `tomllib` many seconds, because its time is quadratic in the number of parts."""
_STACKS = ("transformer", "decoder_only", "encoder_only", "vision")
"""Architectures whose layers can be split over processes."""
_ELEMENTWISE = ("adam", "adamw", "sgd")
"""Optimizers that update every weight from its own gradient."""
ADDED_ARCHITECTURES: dict[str, list[str]] = {}
ADDED_METRICS: dict[str, list[str]] = {}
"""Kind of data -> architectures and metrics that other packages have registered for it (`registry.py`)."""


class Config(Section):
    """A configuration document."""

    data: DataConfig = Field(description="kind of training data", examples=["text"])
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="segmentation of text into tokens")
    model: ModelConfig = Field(TransformerConfig(), description="network architecture", examples=["lstm"])
    train: TrainConfig = Field(
        TrainConfig(), description="training: length, optimizer, learning rate, validation and checkpoints"
    )
    search: SearchConfig = Field(SearchConfig(), description="default settings of decoding")

    @property
    def parallel(self) -> ParallelData:
        """[data] of kind "parallel".  Raises UsageError if it is of another kind."""
        if isinstance(self.data, ParallelData):
            return self.data
        raise UsageError(
            f'[data] is of kind "{self.data.kind}"; accepted here: sentences and their translations (kind "parallel")'
        )

    @model_validator(mode="after")
    def _sections_fit(self, info: ValidationInfo) -> Config:
        problems = [
            *self._model_problems(),
            *self._other_problems(),
            *self._checkpointing_problems(),
            *self._sharding_problems(),
            *self._adaptation_problems(),
        ]
        if not is_stored(info):
            problems += [*self._budget_problems(), *self._rate_problems(), *self._normalization_problems()]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _model_problems(self) -> Iterator[str]:
        """Yield what makes [model] incompatible with [data]."""
        kind, about, model = self.data.kind, self.data.about, self.model
        if model.architecture in ADDED_ARCHITECTURES.get(kind, ()):
            return
        if model.architecture not in about.architectures:
            yield (
                f'model.architecture "{model.architecture}" cannot be trained on data of kind "{kind}"; accepted: '
                f"{', '.join(about.architectures)}"
            )
            return
        if isinstance(model, EncoderOnlyConfig | RecurrentEncoderConfig):
            if about.labels == "input" and model.pooling == "none":
                one = "first" if isinstance(model, EncoderOnlyConfig) else "last"
                yield f'model.pooling is "none", but data of kind "{kind}" needs "{one}" or "mean" (a label per text)'
            if about.labels != "input" and model.pooling != "none":
                yield f'model.pooling is "{model.pooling}", but data of kind "{kind}" needs "none" (a label per word)'
            if model.tie == "all" and about.labels:
                yield f'model.tie = "all": the outputs for data of kind "{kind}" are labels; remove it'
        if isinstance(model, VisionConfig) and isinstance(self.data, ImageData):
            for name, values in (("mean", self.data.pixels.mean), ("std", self.data.pixels.std)):
                if len(values) not in (1, model.channels):
                    yield (
                        f"data.pixels.{name} has {len(values)} values, but model.channels is {model.channels}; "
                        "accepted: one value per channel, or one for all"
                    )
        key, available = "model.position.max_len", getattr(getattr(model, "position", None), "max_len", None)
        if isinstance(model, ConvolutionalConfig):
            key, available = "model.max_positions", model.max_positions
        extra = self.search.max_extra if about.two_sided else 0
        longest = self.data.max_tokens + extra
        if available is not None and available < longest:
            limit = "data.filter.max_tokens" if about.translates else "data.max_tokens"
            limits = f"{limit} or search.max_extra" if extra else limit
            advice = f"lower {limits}" if self.train.init_from else f"raise it to {longest}, or lower {limits}"
            yield (
                f"{key} is {available}, but up to {longest} positions are needed: the longest example kept in training"
                f"{' plus search.max_extra' if extra else ''}; {advice}"
            )

    def _other_problems(self) -> Iterator[str]:
        """Yield what makes [train] and [tokenizer] incompatible with [data]."""
        kind, about, metric = self.data.kind, self.data.about, self.train.metric
        if metric not in (*about.metrics, *ADDED_METRICS.get(kind, ())):
            accepted = ", ".join(about.metrics)
            yield f'train.metric "{metric}" does not exist for data of kind "{kind}"; accepted: {accepted}'
        for key, side in {"tokenizer.target": self.tokenizer.target, "tokenizer": self.tokenizer}.items():
            if side and side.sampling and (side.kind == "char" or not about.samples):
                yield f"{key}.sampling has no effect on characters, running text or images; remove it"
        for key, given in {"shared": not self.tokenizer.shared, "target": self.tokenizer.target}.items():
            if given and not about.two_sided:
                yield f'tokenizer.{key} has no effect on data of kind "{kind}", which has one side; remove it'

    def _checkpointing_problems(self) -> Iterator[str]:
        """Yield why layers cannot be computed twice: recurrent and convolutional ones have a state."""
        key = "train.gradient_checkpointing"
        norm = getattr(self.model, "norm", None)
        if not self.train.gradient_checkpointing:
            return
        if norm is None:
            yield f'{key} = true needs a Transformer; model.architecture is "{self.model.architecture}": remove the key'
        elif norm.kind == "batch":
            yield f'{key} = true would count each batch twice in model.norm.kind = "batch"; use "layer" or "rms"'

    def _sharding_problems(self) -> Iterator[str]:
        """Yield why weights cannot be split over processes: a layer is gathered, and an update needs only its rows."""
        if self.train.parallel.kind != "fsdp":
            return
        refused, instead = 'train.parallel.kind "fsdp"', 'or use train.parallel.kind "replicated"'
        if self.model.architecture not in _STACKS:
            yield (
                f'{refused} needs the layers of a Transformer; model.architecture is "{self.model.architecture}"; '
                f"accepted: {', '.join(_STACKS)}; {instead}"
            )
        if self.train.optimizer.kind not in _ELEMENTWISE:
            yield (
                f'{refused} splits matrices, which train.optimizer.kind "{self.train.optimizer.kind}" needs as a whole;'
                f" accepted: {', '.join(_ELEMENTWISE)}; {instead}"
            )

    def _adaptation_problems(self) -> Iterator[str]:
        """Yield what makes LoRA and added words impossible."""
        train, words = self.train, self.tokenizer.add_words
        for key, given in {"train.lora": train.lora is not None, "tokenizer.add_words": bool(words)}.items():
            if given and train.init_from is None:
                yield f"{key} adapts an existing model, but train.init_from is not set; set it, or remove {key}"
        if words and not self.data.about.adds_words:
            yield f'tokenizer.add_words has no effect on data of kind "{self.data.kind}"; remove it'
        if train.lora is None:
            return
        if self.model.architecture not in _STACKS:
            yield (
                f'train.lora needs the layers of a Transformer; model.architecture is "{self.model.architecture}"; '
                f"accepted: {', '.join(_STACKS)}; remove train.lora to train all weights"
            )
        if words:
            yield "train.lora does not train embeddings, which tokenizer.add_words needs; remove one of both"
        if train.ema:
            yield "train.lora has no moving average; accepted: train.ema = 0"
        if train.parallel.kind == "fsdp":
            yield 'train.lora cannot be used with train.parallel.kind "fsdp"; accepted: "replicated"'

    def _rate_problems(self) -> Iterator[str]:
        """Yield a learning rate that only SGD can use: Adam divides the gradient by its size."""
        kind = self.train.optimizer.kind
        for key, most in ADAM_RATES.items():
            value = getattr(self.train.schedule, key, 0.0)
            if kind != "sgd" and value > most:
                yield (
                    f'train.schedule.{key} = {value:g}: out of range for train.optimizer.kind "{kind}"; accepted: '
                    f'up to {most:g} (higher rates are for kind "sgd")'
                )

    def _normalization_problems(self) -> Iterator[str]:
        """Yield a normalization that is set for characters, which are never normalized."""
        for key, side in {"tokenizer": self.tokenizer, "tokenizer.target": self.tokenizer.target}.items():
            given = side is not None and side.kind == "char" and "normalization" in side.model_fields_set
            if side is not None and given and side.normalization != "identity":
                yield (
                    f'{key}.normalization = "{side.normalization}" has no effect on characters ({key}.kind = "char"), '
                    'which are not normalized; accepted: "identity", or remove it'
                )

    def _budget_problems(self) -> Iterator[str]:
        """Yield the settings of [train] that exceed the budget, as far as it can be determined without the data."""
        train, budget = self.train, self.train.budget
        if budget.unit == "steps" and train.schedule.warmup > budget.amount:
            yield (
                f"train.schedule.warmup is {train.schedule.warmup} steps, more than the budget of {budget}: the "
                f"learning rate never reaches its peak; accepted: 1 to {budget.amount:.0f}"
            )
        if budget.unit == train.validate_every.unit != "seconds":
            checkpoints = math.ceil(budget.amount / train.validate_every.amount)
            if train.average > checkpoints:
                yield (
                    f"train.average is {train.average}, but a budget of {budget} with train.validate_every = "
                    f"{train.validate_every} makes {checkpoints} checkpoints; accepted: 0 to {checkpoints}"
                )


def load_config(
    path: str | Path, overrides: Iterable[str] = (), *, stored: bool = False, run: str | Path | None = None
) -> Config:
    """Read the document at `path`, with `key=value` overrides, e.g. `model.dropout=0.2`.

    A relative `data.root`, and `train.init_from`, is resolved against the folder of the document, or against the
    current directory if it is an override or the document is stored.  The model of `train.init_from` is read, unless
    `run` is a run with a checkpoint that began with it.

    stored: see `parse_config`.  Raises ConfigError with all problems.
    """
    path = as_path(path, "configuration")
    document = read_document(path)
    if stored:
        return parse_config(document, overrides, where=str(path), stored=True)
    _start_at(Path(path).parent, document)
    overrides = [overrides] if isinstance(overrides, str) else list(overrides)
    given = initial_model(document, overrides)
    initial = None if given is None else InitialSections(given, None if run is None else Path(run))
    return parse_config(document, overrides, where=str(path), initial=initial)


def _start_at(folder: Path, document: dict[str, Any]) -> None:
    """Resolve relative paths against the folder of the document instead of the current directory."""
    start_at(folder, document)
    data = document.get("data")
    if isinstance(data, dict) and "train" in data and isinstance(root := data.get("root", ""), str):
        moved = move_root(root, Path(), start=folder)
        if moved != (root or "."):
            data["root"] = moved


def read_document(path: str | Path) -> dict[str, Any]:
    """Return the TOML file at `path`, without validation.  Raises ConfigError."""
    path = as_path(path, "configuration")
    suffix = plain_suffix(path).casefold()
    if suffix in (".tmx", ".tsv", ".csv", ".jsonl", ".parquet", ".zip"):
        advice = f"to write a configuration for this text: dragoman new {path}"
        raise ConfigError(str(path), [f"a {suffix} file is not a configuration; {advice}"])
    try:
        return tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), [f"not valid TOML: {clip(str(error), 300)}"]) from None
    except RecursionError:
        raise ConfigError(str(path), ["brackets nested too deeply; accepted: two levels"]) from None
    except ValueError as error:  # an integer with more digits than Python converts
        raise ConfigError(str(path), [f"not valid TOML: {error}".partition(";")[0]]) from None


def _read(path: Path) -> str:
    """Return the text of a configuration file.  Raises ConfigError for special, large and undecodable files."""
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST + 1)
    except (FileNotFoundError, ValueError):  # ValueError: the path contains a NUL character
        available = sorted(str(p) for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = f"; available: {', '.join(available[:8])}" if available else ""
        raise ConfigError(str(path), [f"no such file{nearest(str(path), available)}{hint}"]) from None
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror or error}; specify a TOML file"]) from None
    if len(content) > _LARGEST:
        raise ConfigError(str(path), [f"larger than {_LARGEST:,} bytes; specify a configuration file"])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [f"not UTF-8 at byte {error.start}; save the file as UTF-8"]) from None
    if found := _DEEP_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigError(
            str(path), [f"line {line:,}: a key with more than {_PARTS} parts; no setting has more than 8"]
        )
    return text


def parse_config(
    document: dict[str, Any],
    overrides: Iterable[str] = (),
    where: str = "configuration",
    stored: bool = False,
    initial: InitialSections | None = None,
) -> Config:
    """Validate a document of nested dictionaries.  Raises ConfigError that lists all problems.

    stored: the document belongs to an existing run or model.  Then it may contain language names instead of codes,
    validation data that are part of the training data, a warm-up longer than the budget, and numbers outside of the
    current limits that do not affect tensor shapes.  initial: the model of `train.init_from`, which completes the
    document; without it, no file is read.
    """
    if not isinstance(document, dict):
        raise ConfigError(where, [f"{shown(document)} is not a configuration; accepted: a table of sections"])
    document.setdefault("model", {})
    for section, tag, default in (("data", "kind", "parallel"), ("model", "architecture", "transformer")):
        if isinstance(found := document.get(section), dict) and not (initial and section == "model"):
            found.setdefault(tag, default)
    problems = apply_overrides(document, overrides, Config)
    problems += _expand_preset(document)
    if initial is not None:
        problems += initial.complete(document)
    try:
        try:
            config = Config.model_validate(document, context={"stored": stored})
        except ValidationError:
            if not load_plug_ins():
                raise
            config = Config.model_validate(document, context={"stored": stored})  # with the kinds that they register
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # pydantic reports a list without valid entries as too short as well.
        inner = {e["loc"][:depth] for e in errors for depth in range(1, len(e["loc"]))}
        problems += [describe(dict(e), Config) for e in errors if e["type"] != "too_short" or e["loc"] not in inner]
        raise ConfigError(where, problems) from None
    if problems:
        raise ConfigError(where, problems)
    return config


@dataclass(frozen=True)
class InitialSections:
    """The sections of the model in `train.init_from`.  run: a run that may have begun with it."""

    folder: str
    run: Path | None = None

    def complete(self, document: dict[str, Any]) -> list[str]:
        """Add the sections of the model to a document; return the problems."""
        problems = []
        try:
            config, owner = self._read()
            problems = merge_sections(document, config.model_dump(mode="json"), owner)
        except DragomanError as error:
            problems.append(f"train.init_from = {shown(self.folder)}: {error}")
        if "architecture" not in document["model"]:  # so that the other sections can be checked
            data = document.get("data")
            kind = str(data.get("kind")) if isinstance(data, dict) else ""
            document["model"] = {"architecture": DATA_KINDS.get(kind, DATA_KINDS["parallel"]).architectures[0]}
        return problems

    def _read(self) -> tuple[Config, str]:
        """Return the configuration of the run, if it has a checkpoint, or of the model, and where it was found."""
        run = self.run
        if run is not None and list_checkpoints(run) and (run / "config.toml").is_file():
            stored = load_config(run / "config.toml", stored=True)
            if stored.train.init_from is not None:
                return stored, str(run)
        folder = find_model(resolve_path(self.folder))
        verify(folder, skip=[name for name in read_meta(folder)["sha256"] if name.startswith("training")])
        document = read_json(folder / "config.json", ModelFolderError, COPY_AGAIN)
        return parse_config(document, where=f"{folder}/config.json", stored=True), self.folder


def _expand_preset(document: dict[str, Any]) -> list[str]:
    """Replace `model.preset` by its keys, unless the document sets them; return the problems."""
    model = document.get("model")
    if not isinstance(model, dict) or "preset" not in model:
        return []
    name = model["preset"]
    known = isinstance(name, str) and name in PRESETS
    document["model"] = {**(PRESETS[name] if known else {}), **{k: v for k, v in model.items() if k != "preset"}}
    if known:
        return []
    near = nearest(name, PRESETS) if isinstance(name, str) else ""
    return [f"model.preset = {shown(name)}{near}; accepted: {', '.join(PRESETS)}"]


def dump_toml(config: Config) -> str:
    """Return the whole document, including defaults, as TOML that `load_config` reads back."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested tables and lists as one table with dotted keys: {"a": {"b": [5]}} -> {"a.b.0": 5}."""
    if isinstance(value, Mapping):
        items = {str(key): item for key, item in value.items()}
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = {str(i): item for i, item in enumerate(value)}
    else:
        return {prefix: value}
    return {k: v for key, item in items.items() for k, v in flatten(item, f"{prefix}.{key}" if prefix else key).items()}
