"""The space of a search: keys of a training's document with the values that are tried."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dragoman.config import Config, parse_config, read_document
from dragoman.config.document import initial_model, start_at
from dragoman.config.errors import problems_of, shown, toml_value
from dragoman.config.tune import Range, TuneConfig, Tuning, entries
from dragoman.errors import ConfigError

_MOST_CHECKED = 256
"""Points of a space that are checked before the first trial; a larger space is checked at random ones."""
_FIXED = {
    "data.": "decides which text is compared",
    "train.metric": "is what the trials are compared by",
    "train.budget": "is the same for all trials; set tune.budget",
    "train.seed": "is no setting to choose; compare seeds with: dragoman train CONFIG --seeds 1 2 3",
    "train.device": "does not change the result",
}
_FREE_DATA = ("data.temperature", "data.augment.", "data.filter.", "data.protect", "data.train.")
_ACCEPTED = "accepted: a list of values, or { low = 0.001, high = 0.01, log = true }"

Choices = list[str] | Range
"""Values as TOML, or a range of numbers."""


@dataclass(frozen=True)
class Plan:
    """A document with its space.

    document: without [tune]; paths start at the current directory.  overrides: for all trials.  base: its configuration
    with these.  settings: [tune].
    """

    path: Path
    document: dict[str, Any]
    overrides: list[str]
    base: Config
    settings: TuneConfig
    space: dict[str, Choices]

    def config(self, values: Mapping[str, str], *, of_trial: bool = True) -> tuple[Config, dict[str, Any]]:
        """Return the configuration with these values, and its document.

        values: key -> TOML.  of_trial: with the budget of a trial.  Raises ConfigError.
        """
        overrides = [*self.overrides, *(f"{key}={value}" for key, value in values.items())]
        if of_trial and self.settings.budget is not None:
            overrides.append(f"train.budget={self.settings.budget}")
        document = copy.deepcopy(self.document)
        return parse_config(document, overrides, str(self.path), init_from=initial_model(document, overrides)), document


def read_plan(path: Path, overrides: Iterable[str] = ()) -> Plan:
    """Read a document with [tune].  Raises ConfigError with all problems of its space."""
    document = read_document(path)
    own = document.pop("tune", None)
    if own is None:
        raise ConfigError(str(path), ["no section [tune]; see: dragoman config tune"])
    if "stage" in document:
        raise ConfigError(str(path), ["a document with stages cannot be tuned; tune the training of one stage"])
    try:
        settings = Tuning.model_validate({"tune": own}).tune
    except ValidationError as error:
        raise ConfigError(str(path), problems_of(error, Tuning)) from None
    start_at(document, path.parent)
    overrides = list(overrides)
    base = parse_config(copy.deepcopy(document), overrides, str(path), init_from=initial_model(document, overrides))
    space: dict[str, Choices] = {}
    problems = [] if settings.space else ["tune.space is empty; " + _ACCEPTED]
    for key, value in entries(settings.space):
        choices = _choices(value)
        if isinstance(choices, str):
            problems.append(f"tune.space.{key} = {shown(value)}: {choices}")
        elif reason := _fixed(key, base):
            problems.append(f"tune.space.{key}: {key} {reason}")
        else:
            space[key] = choices
    if base.data.valid is None:
        problems.append("data.valid is missing; the trials are compared by their scores on it")
    plan = Plan(path, document, overrides, base, settings, space)
    for point in _points(space):
        try:
            plan.config(point)
        except ConfigError as error:
            problems += [f"tune.space: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(str(path), list(dict.fromkeys(problems)))
    return plan


def _choices(value: Any) -> Choices | str:
    """Return what is tried of a key, or what is wrong with it."""
    if isinstance(value, list):
        return list(dict.fromkeys(map(toml_value, value))) or f"no value; {_ACCEPTED}"
    if not isinstance(value, dict) or not value:
        return _ACCEPTED if value != {} else f"no value; {_ACCEPTED}"
    try:
        return Range.model_validate(value)
    except ValidationError as error:
        return "; ".join(problems_of(error, Range))


def _fixed(key: str, base: Config) -> str:
    """Return why a key cannot be searched, or ""."""
    if key.startswith("tokenizer.") and base.train.metric == "loss":
        return 'changes the tokens, and losses per token cannot be compared; set train.metric = "chrf"'
    free = key.startswith(_FREE_DATA)
    return "" if free else next((reason for fixed, reason in _FIXED.items() if key.startswith(fixed)), "")


def _points(space: Mapping[str, Choices]) -> Iterator[dict[str, str]]:
    """Yield all points of a space, with the ends of ranges; of a large one, every value once and random points."""
    values = [[toml_value(v) for v in (c.low, c.high)] if isinstance(c, Range) else c for c in space.values()]
    count = 1
    for some in values:
        count *= len(some)
    if count <= _MOST_CHECKED:
        rows: Iterable[Sequence[str]] = itertools.product(*values)
    else:
        draw = random.Random(0)
        most = max(_MOST_CHECKED, *map(len, values))
        shuffled = [draw.sample(some, len(some)) for some in values]
        rows = ([some[i] if i < len(some) else draw.choice(some) for some in shuffled] for i in range(most))
    yield from (dict(zip(space, row, strict=True)) for row in rows if row)
