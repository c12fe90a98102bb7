"""The base class of all sections, types of their values, and `Duration`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dragoman.errors import clip, nearest


class Section(BaseModel):
    """A section of the document: immutable, without unknown keys, NaN and infinity."""

    # defer_build: pydantic builds a validator when it is first used, which most sections never are on their own; this
    # saves a tenth of the time of an import.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @property
    def variant(self) -> str:
        """The kind, followed by other choices, such as "luong (general)"; "" for a section without kinds."""
        kind: str = getattr(self, "kind", "")
        others = [value for name, value in self if name != "kind" and isinstance(value, str)]
        return f"{kind} ({', '.join(others)})" if kind and others else kind

    def _problems(self, stored: bool) -> Iterator[str]:
        """Yield which values contradict each other.  stored: see `is_stored`."""
        yield from ()

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        if problems := list(self._problems(is_stored(info))):
            raise ValueError("; ".join(problems))
        return self


def field(default: Any, meaning: str, *, example: Any = None, **limits: Any) -> Any:
    """Return the field of a key.  default: `...` if the key is required.  meaning, example: see `reference.py`."""
    return Field(default, description=meaning, examples=None if example is None else [example], **limits)


_LIMITS = {"less_than_equal", "greater_than_equal", "greater_than", "string_pattern_mismatch", "limit"}
"""pydantic's error types for values outside of their limits; "limit" is that of the types below."""
_MOST_STORED = 1.7e308
"""About the largest float; larger integers and infinity are rejected even in stored documents."""


def is_stored(info: ValidationInfo) -> bool:
    """Return whether the document is stored with a run or model and was validated when that was created."""
    return bool(info.context and info.context.get("stored"))


def _not_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("bool_for_number", "must be a number, not true or false")
    return value


NotBoolean = BeforeValidator(_not_boolean)
"""Rejects true and false, which pydantic accepts as 1 and 0."""


def auto_or(least: int, most: int) -> BeforeValidator:
    """Accept "auto" or a whole number."""

    def check(value: Any) -> Any:
        if value == "auto" or (type(value) is int and least <= value <= most):
            return value
        raise PydanticCustomError("limit", f'accepted: "auto", or {least:,} to {most:,}')

    return BeforeValidator(check)


def zero_or(least: float, message: str) -> AfterValidator:
    """Accept 0, which turns a part off, or at least this number."""

    def check(value: float) -> float:
        if 0 < value < least:
            raise PydanticCustomError("limit", message)
        return value

    return AfterValidator(check)


def _accept_stored(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    try:
        return handler(value)
    except ValidationError as error:
        outside = all(problem["type"] in _LIMITS for problem in error.errors(include_url=False))
        plain = isinstance(value, str) or (type(value) in (int, float) and abs(value) <= _MOST_STORED)
        if is_stored(info) and outside and plain:
            return value
        raise


AcceptStored = WrapValidator(_accept_stored)
"""Accepts values of stored documents outside of the current limits; for settings that do not affect tensor shapes."""

_UNITS: dict[str, tuple[Literal["seconds", "steps", "epochs", "tokens"], float]] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("seconds", 1.0)),
    **dict.fromkeys(("min", "minute", "minutes"), ("seconds", 60.0)),
    **dict.fromkeys(("h", "hour", "hours"), ("seconds", 3600.0)),
    **{name: (unit, 1.0) for unit in ("steps", "epochs", "tokens") for name in (unit, unit[:-1])},
}


class Duration(Section):
    """An amount of training: `"20 min"`, `"8000 steps"`, `"30 epochs"`, `"50M tokens"`; `Share`: `"5%"`."""

    amount: float
    unit: Literal["seconds", "steps", "epochs", "tokens", "percent"]

    @model_serializer
    def __str__(self) -> str:
        if self.unit == "seconds" and self.amount >= 60 and self.amount % 60 == 0:
            return f"{self.amount / 60:.0f} min"
        # All digits without an exponent, as the parser accepts them.
        number = f"{self.amount:.6f}".rstrip("0").rstrip(".")
        return f"{number}{ {'percent': '%', 'seconds': ' s'}.get(self.unit, f' {self.unit}') }"


class Share(Duration):
    """A share of `train.budget`: `"5%"`.  It stays a share in stored documents."""

    unit: Literal["percent"] = "percent"


_MOST = {"seconds": 10 * 366 * 86_400.0, "steps": 1e9, "epochs": 1e6, "tokens": 1e15}
"""Ten years, a billion steps, a million epochs, 10**15 tokens: far above any training, and exact as floats."""
_LEAST = {"seconds": 0.001, "steps": 1.0, "epochs": 1e-6, "tokens": 1.0}


_SHARE = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%\s*")
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*+([kMG]?)\s*+([a-zA-Z]+)\s*")


def _duration(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, Duration):
        return value
    accepted = 'accepted: a number and a unit, such as "20 min", "2 h", "8000 steps", "30 epochs", "50M tokens"'
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("limit", accepted)
    number, factor, name = match.groups()
    if name.lower() not in _UNITS:
        raise ValueError(f"no unit {clip(name, 20)!r}{nearest(name, _UNITS)}; {accepted}")
    unit, scale = _UNITS[name.lower()]
    amount = float(number) * {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}[factor] * scale
    if is_stored(info) and 0 < amount < math.inf:
        return Duration(amount=amount, unit=unit)
    if not _LEAST[unit] <= amount <= _MOST[unit]:
        raise ValueError(f"out of range; accepted: {_LEAST[unit]:g} to {_MOST[unit]:.4g} {unit}")
    if unit in ("steps", "tokens") and amount != (whole := round(amount)):
        # A product such as 1.1 * 1e6 may differ from the whole number in the last bit.
        if abs(amount - whole) > 1e-9 * amount:
            raise ValueError(f"must be a whole number of {unit}")
        amount = float(whole)
    return Duration(amount=amount, unit=unit)


def _share(value: Any) -> Share | None:
    """Return a share of the budget; None if the value has another form."""
    if isinstance(value, Share):
        return value
    match = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    if not 0 < (percent := float(match[1])) <= 100:
        raise ValueError("out of range; accepted: a share of more than 0% to 100%")
    return Share(amount=percent)


def or_share(least: int, most: int) -> BeforeValidator:
    """Accept a whole number or a share of the budget."""

    def check(value: Any) -> Any:
        if (share := _share(_not_boolean(value))) is not None:
            return share
        with suppress(TypeError, ValueError, OverflowError):
            if least <= int(value) == float(value) and int(value) <= most:
                return int(value)
        numbers = f"{least:,} to {most:,}" if most < 2**63 - 1 else f"a whole number from {least:,}"
        raise PydanticCustomError("limit", f'accepted: {numbers}, or a share of the budget, such as "5%"')

    return BeforeValidator(check)


DurationField = Annotated[Duration, BeforeValidator(_duration)]
IntervalField = Annotated[
    Duration | Share, BeforeValidator(lambda value, info: _share(value) or _duration(value, info))
]
