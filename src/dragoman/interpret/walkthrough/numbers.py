"""A story as plain JSON, cut to what a page can hold and a reader can read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dragoman.interpret.walkthrough.step import Quantity, Step

__all__ = ["Cut", "fitting_cut", "step_json"]

_NUMBERS = 130_000
"""In a whole walk-through: as text, with all that names them, a little more than 2 MB."""

_FEATURES = ("feature", "input", "output")
_PLACES = ("position", "query", "key")


@dataclass(frozen=True)
class Cut:
    """How many features and positions of a tensor are shown; exact: whether its numbers are as they are, or rounded."""

    features: int
    positions: int
    exact: bool

    def size(self, quantity: Quantity) -> tuple[int, int]:
        """Rows and columns of it that are shown."""
        rows, columns = quantity.value.shape[1:]
        return self._most(quantity.along[0], rows), self._most(quantity.along[1], columns)

    def _most(self, axis: str, there: int) -> int:
        return min(there, self.features if axis in _FEATURES else self.positions if axis in _PLACES else there)


def fitting_cut(steps: Sequence[Step], most: int, exact: bool) -> Cut:
    """All positions where they fit into `_NUMBERS`, else as many as do, at least 2."""
    quantities = [quantity for step in steps for quantity in step.quantities]
    longest = max((n for q in quantities for n, axis in zip(q.of, q.along, strict=True) if axis in _PLACES), default=2)
    for positions in range(longest, 2, -1):
        cut = Cut(most, positions, exact)
        if sum(q.value.size(0) * math.prod(cut.size(q)) for q in quantities) <= _NUMBERS:
            return cut
    return Cut(most, 2, exact)


def step_json(step: Step, cut: Cut) -> dict[str, Any]:
    """The step as plain JSON; numbers that are not finite are texts, "−∞" is what a mask puts."""
    shown = [entry for quantity in step.quantities for entry in _entries(quantity, step.gradients, cut)]
    phrase = step.phrase
    found: dict[str, Any] = {
        "id": step.name,
        "part": step.part,
        "box": step.box,
        "title": phrase.title,
        "formula": phrase.formula,
        "source": phrase.source,
        "note": phrase.note,
        "uses": [[use.name, use.kind] for use in step.uses],
        "tensors": shown,
    }
    return found if step.equation is None else found | {"equation": step.equation}


def _entries(quantity: Quantity, gradients: bool, cut: Cut) -> Iterable[dict[str, Any]]:
    """One for each head."""
    numbers = quantity.gradient if gradients else quantity.value
    if numbers is None:
        return
    rows, columns = cut.size(quantity)
    for head, matrix in enumerate(numbers):
        entry: dict[str, Any] = {
            "name": quantity.name,
            "symbol": f"∂{quantity.symbol}" if gradients else quantity.symbol,
            "kind": "gradient" if gradients else "value",
            "shape": list(quantity.shape),
            "axes": list(quantity.axes),
            "rows": _names(quantity.rows, rows, quantity.first[0]),
            "columns": _names(quantity.columns, columns, quantity.first[1]),
            "values": _values(matrix[:rows, :columns], cut.exact),
        }
        if quantity.by_head:
            entry["head"] = head
        if left_out := _shown((rows, columns), quantity):
            entry["shown"] = left_out
        if quantity.mark is not None:
            entry["mark"] = list(quantity.mark)
        yield entry


def _names(names: Sequence[str] | None, count: int, first: int) -> list[str] | None:
    """None for those that count from 0."""
    if names is not None:
        return list(names[:count])
    return [str(first + i) for i in range(count)] if first else None


def _values(matrix: Tensor, exact: bool) -> list[list[float | int | str]]:
    return [[_number(x, exact) for x in row] for row in matrix.tolist()]


def _number(x: float, exact: bool) -> float | int | str:
    if isinstance(x, int):
        return x
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else "∞" if x > 0 else "−∞"
    return x if exact else float(f"{x:.6g}")


def _shown(shown: tuple[int, int], quantity: Quantity) -> list[list[int | str]]:
    """What is left out: [8, 512, "feature"] for 8 of 512 features."""
    return [
        [some, there, axis]
        for some, there, axis in zip(shown, quantity.of, quantity.along, strict=True)
        if some < there
    ]
