"""What a walk-through is made of: steps, the quantities that a step shows, and its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Phrase", "Quantity", "Step", "Text", "Use", "text"]

Text = dict[str, str]
"""A text in English ("en") and Chinese ("zh")."""


def text(en: str, zh: str) -> Text:
    return {"en": en, "zh": zh}


@dataclass(frozen=True)
class Phrase:
    """The words of a kind of step.

    formula: in Unicode.  source: paper, section or equation.  Backwards: terms, what it sends to the gradient of each
    quantity that it uses; own, the gradients of its parameters; keeps, which values a term needs besides what came
    back: those of the other quantities used ("others"), of that one ("self") or of what came out ("out").
    """

    title: Text
    formula: str
    source: str
    note: Text
    terms: tuple[str, ...] = ()
    own: str = ""
    back_note: Text | None = None
    keeps: str = ""


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
class Use:
    """A quantity of another step: its "value" or its "gradient"."""

    name: str
    kind: str = "value"


@dataclass(frozen=True)
class Step:
    """One operation, and what goes through it.

    uses: what of other steps it is made of.  part: "forward", "backward" or "update".  gradients: whether it shows the
    gradients of its quantities.  box: where in the model's picture it stands.  equation: the formula with the numbers
    of one element in it.
    """

    name: str
    box: Text
    phrase: Phrase
    quantities: tuple[Quantity, ...]
    part: str = "forward"
    gradients: bool = False
    equation: str | None = None
    uses: tuple[Use, ...] = ()
