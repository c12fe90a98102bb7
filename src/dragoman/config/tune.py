"""`[tune]`: what `dragoman tune` searches, in the document of a training, which ignores it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from dragoman.config import limits
from dragoman.config.section import DurationField, NotBoolean, Section, field

_Number = Annotated[int | float, NotBoolean, Field(ge=-1e18, le=1e18)]


class Range(Section):
    """Numbers from `low` to `high`; whole numbers if both are."""

    low: _Number
    high: _Number
    log: bool = False

    def _problems(self, stored: bool) -> Iterator[str]:
        if not self.low < self.high:
            yield f"low {self.low} is not less than high {self.high}"
        if self.log and self.low <= 0:
            yield f"low {self.low} with log = true; accepted: more than 0"


class TuneConfig(Section):
    """Search of settings: each trial trains with one choice of them."""

    trials: limits.Trials = field(20, "number of trials", example=50)
    budget: DurationField | None = field(
        None, "length of the training of a trial; default: `train.budget`", example="3 min"
    )
    total: DurationField | None = field(None, "a time; no trial begins after trainings of this length", example="2 h")
    space: dict[str, Any] = field(
        ...,
        "key of the document -> list of values, or range such as { low = 1e-3, high = 1e-2, log = true }",
        example={"model.dropout": [0.1, 0.3]},
    )

    def _problems(self, stored: bool) -> Iterator[str]:
        if self.total is not None and self.total.unit != "seconds":
            yield f'total = {str(self.total)!r}: accepted: a time, such as "2 h"'


class Tuning(Section):
    """The part of a document that `dragoman tune` reads."""

    tune: TuneConfig = field(..., "search of settings")


def entries(space: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of a space with their values; a key may be written as nested tables."""
    for key, value in space.items():
        if isinstance(value, dict) and value and not value.keys() & Range.model_fields.keys():
            yield from entries(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
