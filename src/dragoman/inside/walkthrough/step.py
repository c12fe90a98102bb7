"""What a walk-through is made of: steps, the quantities that a step shows, and its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

__all__ = ["Phrase", "Quantity", "Step", "Text", "text"]

Text = dict[str, str]
"""A text in English ("en") and Chinese ("zh")."""


def text(en: str, zh: str) -> Text:
    return {"en": en, "zh": zh}


@dataclass(frozen=True)
class Phrase:
    """The words of a kind of step.

    formula, back: forwards and backwards, in Unicode; ∂X is short for ∂L/∂X.  source: paper, section or equation.
    """

    title: Text
    formula: str
    source: str
    note: Text
    back: str = ""
    back_note: Text | None = None


@dataclass(frozen=True)
class Quantity:
    """A tensor as matrices (heads, rows, columns), one a head where it has heads and else one.

    name: how Python asks for it (a tap, or a parameter as an expression).  shape, axes: of the tensor of that name.
    value, gradient: (H or 1, rows, columns), the whole or, along words, a choice; of: how many rows and columns there
    are in all.  along: the axes of rows and columns.  rows, columns: what they are called, None where they are numbered
    (from `first`).  mark: row and column of the value that the step is about.
    """

    name: str
    symbol: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    value: Tensor
    gradient: Tensor | None
    of: tuple[int, int]
    along: tuple[str, str]
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    first: tuple[int, int] = (0, 0)
    by_head: bool = False
    mark: tuple[int, int] | None = None


@dataclass(frozen=True)
class Step:
    """One operation, and what goes through it.

    part: "forward", "backward" or "update".  gradients: whether it shows the gradients of its quantities.  box: where
    in the model's picture it stands.  equation: the formula with the numbers of one element in it.
    """

    name: str
    box: Text
    phrase: Phrase
    quantities: tuple[Quantity, ...]
    part: str = "forward"
    gradients: bool = False
    equation: str | None = None

    def backwards(self) -> Step:
        """The same way back: the quantities that have a gradient."""
        there = tuple(quantity for quantity in self.quantities if quantity.gradient is not None)
        return replace(self, name=f"{self.name}.gradient", part="backward", gradients=True, quantities=there)
