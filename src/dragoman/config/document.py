"""The configuration document: `[data] [tokenizer] [model] [train] [search]`, read from TOML into frozen models.

Every problem in a document is reported at once (`ConfigError`), with what would be accepted and the nearest name.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError, ValidationInfo, model_validator

from dragoman.config.data import DataConfig, ParallelData, TokenizerConfig
from dragoman.config.errors import describe, shown
from dragoman.config.model import (
    PRESETS,
    ConvolutionalConfig,
    EncoderOnlyConfig,
    LearnedPosition,
    ModelConfig,
    TransformerConfig,
)
from dragoman.config.overrides import apply_overrides
from dragoman.config.section import Section, is_stored
from dragoman.config.train import SearchConfig, TrainConfig
from dragoman.errors import ConfigError, UsageError, clip, nearest
from dragoman.io.reading import open_regular

__all__ = ["Config", "dump_toml", "flatten", "load_config", "parse_config"]

_LARGEST = 1_000_000
"""Bytes of a configuration file: a thousand times those of the recipes, and read in a second."""
_PARTS = 32
_KEY = r"""(?:[\w-]{1,99}|"[^"\n]{0,99}"|'[^'\n]{0,99}')"""
_DEEP_KEY = re.compile(rf"(?<![\w-])(?:{_KEY}[ \t]*\.[ \t]*){{{_PARTS}}}")
"""A dotted key so long that `tomllib`, whose time grows with the square of its parts, would take many seconds."""
_TRANSLATORS = ("transformer", "rnn", "gru", "lstm", "convolutional")
_LEARN = {
    "parallel": _TRANSLATORS,
    "trees": _TRANSLATORS,
    "text": ("decoder_only",),
    "masked": ("encoder_only",),
    "tagged": ("encoder_only",),
    "labelled": ("encoder_only",),
    "images": ("vision",),
}
"""Kind of data -> the architectures that learn from it."""
_SCORES: dict[str, tuple[str, ...]] = {
    "parallel": ("bleu", "chrf"),
    "trees": ("f1",),
    "text": (),
    "masked": ("accuracy",),
    "tagged": ("accuracy",),
    "labelled": ("accuracy",),
    "images": ("accuracy",),
}
"""Kind of data -> what is scored besides the loss."""


class Config(Section):
    """The whole document."""

    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = TransformerConfig()
    train: TrainConfig = TrainConfig()
    search: SearchConfig = SearchConfig()

    @property
    def parallel(self) -> ParallelData:
        """[data] of sentences and their translations.  Raises `UsageError` where it is of another kind."""
        if isinstance(self.data, ParallelData):
            return self.data
        raise UsageError(
            f'[data] is of kind "{self.data.kind}", and this needs sentences and their translations (kind "parallel")'
        )

    @model_validator(mode="after")
    def _fit(self, info: ValidationInfo) -> Config:
        problems = [*self._model_problems(), *self._other_problems()]
        if not is_stored(info):
            problems += self._schedule_problems()
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _model_problems(self) -> list[str]:
        """What [model] has that does not go with [data]."""
        kind, model = self.data.kind, self.model
        problems: list[str] = []
        if model.architecture not in _LEARN[kind]:
            return [
                f'model.architecture "{model.architecture}" does not learn from data of kind "{kind}"; accepted: '
                f"{', '.join(_LEARN[kind])}"
            ]
        if isinstance(model, EncoderOnlyConfig):
            one = kind == "labelled"
            if (model.pooling == "none") == one:
                accepted = '"first" or "mean" (a label a text)' if one else '"none" (a label a word)'
                problems.append(f'model.pooling is "{model.pooling}", and data of kind "{kind}" needs {accepted}')
            if model.tie == "all" and kind != "masked":
                problems.append(f'model.tie = "all": the outputs of data of kind "{kind}" are labels; leave it out')
        room, key = self._positions()
        extra = self.search.max_extra if _LEARN[kind] == _TRANSLATORS else 0
        longest = self.data.max_tokens + extra
        if room is not None and room < longest:
            problems.append(
                f"{key} is {room}, and up to {longest} positions are needed: the longest example kept in training"
                f"{' plus search.max_extra' if extra else ''}; set it to {longest}, or lower the limits"
            )
        return problems

    def _other_problems(self) -> list[str]:
        """What [train] and [tokenizer] have that does not go with [data]."""
        kind = self.data.kind
        problems: list[str] = []
        scores = ("loss", *_SCORES[kind])
        if self.train.metric not in scores:
            problems.append(
                f'train.metric "{self.train.metric}" is not scored on data of kind "{kind}"; accepted: '
                f"{', '.join(scores)}"
            )
        if self.tokenizer.sampling and (self.tokenizer.kind == "char" or kind in ("text", "masked", "images")):
            problems.append("tokenizer.sampling has no effect on characters, running text or images; leave it out")
        if not self.tokenizer.shared and _LEARN[kind] != _TRANSLATORS:
            problems.append(f'tokenizer.shared has no effect on data of kind "{kind}": it has one side; leave it out')
        return problems

    def _schedule_problems(self) -> list[str]:
        """What of [train] cannot be reached within the budget, as far as that follows from the document alone."""
        train = self.train
        problems: list[str] = []
        if train.budget.unit == "steps" and train.schedule.warmup > train.budget.amount:
            problems.append(
                f"train.schedule.warmup is {train.schedule.warmup} steps, more than the budget of {train.budget}: the "
                f"learning rate would never reach its peak; accepted: 1 to {train.budget.amount:.0f}"
            )
        if train.budget.unit == train.validate_every.unit != "seconds":
            checkpoints = math.ceil(train.budget.amount / train.validate_every.amount)
            if train.average > checkpoints:
                problems.append(
                    f"train.average is {train.average}, and a budget of {train.budget} with train.validate_every = "
                    f"{train.validate_every} makes {checkpoints} checkpoints; accepted: 0 to {checkpoints}"
                )
        return problems

    def _positions(self) -> tuple[int | None, str]:
        """How many positions the model has, None = any number, and the key that says so."""
        if isinstance(self.model, ConvolutionalConfig):
            return self.model.max_positions, "model.max_positions"
        position = getattr(self.model, "position", None)
        return (position.max_len, "model.position.max_len") if isinstance(position, LearnedPosition) else (None, "")


def load_config(path: str | Path, overrides: Iterable[str] = (), *, stored: bool = False) -> Config:
    """The document at `path` with `key=value` overrides; stored: as for `parse_config`.

    Raises `ConfigError` with every problem found.
    """
    path = Path(path)
    try:
        document = tomllib.loads(_text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), [f"not valid TOML: {clip(str(error), 300)}"]) from None
    except RecursionError:
        raise ConfigError(str(path), ["brackets nested too deeply; no setting needs more than two levels"]) from None
    except ValueError as error:  # an integer of more digits than Python reads
        raise ConfigError(str(path), [f"not valid TOML: {error}".partition(";")[0]]) from None
    return parse_config(document, overrides, where=str(path), stored=stored)


def _text_of(path: Path) -> str:
    """The text of a configuration file.  Raises `ConfigError` for everything that is not one, without reading it."""
    try:
        with open_regular(path) as file:
            content = file.read(_LARGEST + 1)
    except (FileNotFoundError, ValueError):  # ValueError: the path contains a null byte
        raise ConfigError(str(path), [_no_such_file(path)]) from None
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(str(path), [f"cannot be read: {reason}; a configuration is a TOML file"]) from None
    if len(content) > _LARGEST:
        raise ConfigError(str(path), [f"larger than {_LARGEST:,} bytes, so this is not a configuration; name another"])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [f"not UTF-8 at byte {error.start}; save the file as UTF-8"]) from None
    if found := _DEEP_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ConfigError(str(path), [f"line {line:,}: a key of more than {_PARTS} parts; no setting has more than 8"])
    return text


def _no_such_file(path: Path) -> str:
    here = sorted(str(p) for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
    hint = f"; there are: {', '.join(here[:8])}" if here else ""
    return f"no such file{nearest(str(path), here)}{hint}"


def parse_config(
    document: dict[str, Any], overrides: Iterable[str] = (), where: str = "configuration", stored: bool = False
) -> Config:
    """A document as nested dictionaries -> `Config`.  Raises `ConfigError` with every problem found.

    stored: it belongs to an existing run or model; what was accepted when that was trained is accepted again (names of
    languages, a validation set that was trained on, a warm-up beyond the budget, and numbers outside of today's limits
    where they determine no shapes).
    """
    if not isinstance(document, dict):
        raise ConfigError(where, [f"{shown(document)} is not a configuration, which is a table of sections"])
    _fill_tags(document)
    problems = apply_overrides(document, overrides, Config)
    problems += _fill_preset(document)
    try:
        config = Config.model_validate(document, context={"stored": stored})
    except ValidationError as error:
        problems += _described(error)
        raise ConfigError(where, problems) from None
    if problems:
        raise ConfigError(where, problems)
    return config


def _described(error: ValidationError) -> Iterator[str]:
    """pydantic's errors in words, without those that only follow from others."""
    errors = error.errors(include_url=False)
    # A list whose items are all wrong is reported as too short as well.
    inner = {e["loc"][:depth] for e in errors for depth in range(1, len(e["loc"]))}
    return (describe(dict(e), Config) for e in errors if not (e["type"] == "too_short" and e["loc"] in inner))


def _fill_tags(document: dict[str, Any]) -> None:
    """A document that does not say otherwise is about a Transformer that learns from translations."""
    document.setdefault("model", {})
    for section, tag, default in (("data", "kind", "parallel"), ("model", "architecture", "transformer")):
        if isinstance(found := document.get(section), dict):
            found.setdefault(tag, default)


def _fill_preset(document: dict[str, Any]) -> list[str]:
    """Put the keys of `model.preset` under those the document gives itself."""
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
    """The whole document, defaults written out, as TOML that `load_config` reads back."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested tables and lists as one, with dotted keys: {"a": {"b": [5]}} -> {"a.b.0": 5}."""
    if isinstance(value, Mapping):
        items = {str(key): item for key, item in value.items()}
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = {str(i): item for i, item in enumerate(value)}
    else:
        return {prefix: value}
    return {k: v for key, item in items.items() for k, v in flatten(item, f"{prefix}.{key}" if prefix else key).items()}
