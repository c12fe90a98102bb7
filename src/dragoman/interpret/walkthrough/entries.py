"""The data of the walkthrough: the entries of `steps.toml`, and the classes that describe a step."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from string import Template
from typing import Any

from torch import Tensor

Text = dict[str, str]
"""A text in English ("en") and Chinese ("zh")."""

_EMPTY: Text = {"en": "", "zh": ""}


@dataclass(frozen=True)
class StepEntry:
    """One kind of step; the fields are explained in `steps.toml`."""

    title: Text
    formula: str = ""
    formula_zh: str = ""
    source: str = ""
    text: Text = field(default_factory=lambda: _EMPTY)
    taps: Sequence[str] = ()
    tensors: Sequence[str] = ()
    uses: Sequence[str] = ()
    box: Text = field(default_factory=lambda: _EMPTY)
    part: Text | None = None
    terms: Sequence[str] = ()
    parameter_gradients: str = ""
    needs: str = ""
    backward_text: Text = field(default_factory=lambda: _EMPTY)
    unless_equal: str = ""
    gradient: bool = True
    when: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def under(self, conditions: Iterable[str]) -> StepEntry:
        """Return the entry with the changes of all `conditions`, in the order of the file."""
        entry = self
        for changes in [changes for condition, changes in self.when.items() if condition in conditions]:
            entry = replace(entry, **{key: value for key, value in changes.items() if key != "more"})
            more = {"formula": "", **_EMPTY, **changes.get("more", {})}
            en, zh = f"{entry.text['en']} {more['en']}".strip(), entry.text["zh"] + more["zh"]
            entry = replace(entry, text={"en": en, "zh": zh}, formula=entry.formula + more["formula"])
        return entry

    def filled(self, **values: str | Text) -> StepEntry:
        """Return the entry with each `$name` in its formula and its text replaced by `values[name]`."""
        formula = Template(self.formula).safe_substitute(values)
        return replace(self, formula=formula, text=substituted(self.text, **values))


@dataclass(frozen=True)
class Quantity:
    """A tensor as matrices (heads, rows, columns), one per head, or a single one without heads.

    name: the tap, or the parameter as a Python expression.  value, gradient: (H or 1, rows, columns), along the
    vocabulary only the tokens shown.  along: the axes of rows and columns; size: how many of them the whole tensor has.
    shape, axes: of the tensor called `name`.  rows, columns: labels, None for numbers from 0.  mark: row and column
    of the value that the step is about.  nominal: the numbers are names, such as token ids, of which none is larger.
    per_head: the tensor is a matrix with the columns of all heads side by side, or has an axis "head".
    """

    name: str
    symbol: str
    value: Tensor
    gradient: Tensor | None
    along: tuple[str, str]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    size: tuple[int, int]
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    mark: tuple[int, int] | None = None
    nominal: bool = False
    per_head: bool = False


@dataclass(frozen=True)
class WalkthroughStep:
    """One operation with the quantities that it shows.

    name: the tap that makes it.  uses: names of other steps' quantities, with "value" or "gradient".  part: "forward",
    "backward" or "update".  gradients: whether gradients are shown.  equation: the formula with the numbers of one
    element.
    """

    name: str
    entry: StepEntry
    quantities: tuple[Quantity, ...]
    uses: tuple[tuple[str, str], ...] = ()
    part: str = "forward"
    gradients: bool = False
    equation: str | None = None


def read_data(name: str, number: Callable[[str], Any] = float) -> dict[str, Any]:
    """Read the TOML file of that name in the folder of this module; number: converts a number with decimals."""
    return tomllib.loads((files(__package__) / name).read_text("utf-8"), parse_float=number)


def substituted(text: Text, **values: str | Text) -> Text:
    """Return `text` with each `$name` replaced by `values[name]`, in both languages."""
    in_language = {
        language: {name: value if isinstance(value, str) else value[language] for name, value in values.items()}
        for language in text
    }
    return {language: Template(text[language]).safe_substitute(in_language[language]) for language in text}


_DATA = read_data("steps.toml")
ENTRIES = {name: StepEntry(**entry) for name, entry in _DATA["steps"].items()}
ENTRIES |= {tap: entry for entry in ENTRIES.values() for tap in entry.taps}
"""By name, and by tap."""
BOXES: dict[str, Text] = _DATA["boxes"]
