"""What every section shares: frozen, no unknown keys, no NaN; and `Duration`, a number with a unit."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from dragoman.errors import nearest

__all__ = ["Duration", "DurationField", "Section"]


class Section(BaseModel):
    """A part of the document."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


_UNITS = {
    "seconds": ("s", "sec", "second", "seconds"),
    "minutes": ("min", "minute", "minutes"),
    "hours": ("h", "hour", "hours"),
    "steps": ("step", "steps"),
    "epochs": ("epoch", "epochs"),
    "tokens": ("token", "tokens"),
}
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


class Duration(Section):
    """How long: `"20 min"`, `"8000 steps"`, `"30 epochs"`, `"50M tokens"`."""

    amount: float
    unit: Literal["seconds", "steps", "epochs", "tokens"]

    def __str__(self) -> str:
        if self.unit == "seconds" and self.amount >= 60 and self.amount % 60 == 0:
            return f"{self.amount / 60:.0f} min"
        # All digits and no exponent: what is written here is read back.
        number = f"{self.amount:.6f}".rstrip("0").rstrip(".")
        return f"{number} {self.unit if self.unit != 'seconds' else 's'}"


def _duration(value: Any) -> Any:
    if isinstance(value, Duration):
        return value
    accepted = 'accepted: a number and a unit, such as "20 min", "2 h", "8000 steps", "30 epochs", "50M tokens"'
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMG]?)\s*([a-zA-Z]+)\s*", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(accepted)
    number, factor, word = match.groups()
    unit = next((u for u, words in _UNITS.items() if word.lower() in words), None)
    if unit is None:
        raise ValueError(f"no unit {word!r}{nearest(word, [w for ws in _UNITS.values() for w in ws])}; {accepted}")
    amount = float(number) * _FACTORS[factor] * {"minutes": 60.0, "hours": 3600.0}.get(unit, 1.0)
    if amount < 1e-6:
        raise ValueError("must be more than nothing")
    return Duration(amount=amount, unit="seconds" if unit in ("minutes", "hours") else unit)


DurationField = Annotated[Duration, BeforeValidator(_duration), PlainSerializer(str, return_type=str)]
