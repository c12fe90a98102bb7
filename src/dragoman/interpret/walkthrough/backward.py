"""The steps after the forward ones: each of those in reverse order with its gradients, then one update."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from dragoman.interpret.walkthrough.entries import BOXES, ENTRIES, Quantity, Text, WalkthroughStep, substituted
from dragoman.interpret.walkthrough.quantities import Quantities
from dragoman.interpret.walkthrough.training_step import ParameterElement

_FUSED = {"qkv": "QKV", "kv": "KV"}
"""Fused matrices: name of the layer -> the matrices that it stacks."""

Users = Callable[[str], Sequence[tuple[WalkthroughStep, int]]]
"""Name of a quantity -> the steps that use it, with its index in their `uses`."""


def backward_steps(forward: Sequence[WalkthroughStep]) -> list[WalkthroughStep]:
    """Return the backward steps, from the last to the first, without those that have no gradient.

    The gradient of a quantity is a sum over the steps that use it, so its formula consists of their terms.
    """
    users = users_of(forward)
    return [back for step in reversed(forward) if (back := _backward_step(step, users)).quantities]


def users_of(forward: Sequence[WalkthroughStep]) -> Users:
    """Return a function from the name of a quantity to the steps that use it, each with its index in `uses`.

    Instead of a step without a term (a mask), it returns the users of its result.
    """
    direct: defaultdict[str, list[tuple[WalkthroughStep, int]]] = defaultdict(list)
    for step in forward:
        for index, (name, _) in enumerate(step.uses):
            direct[name].append((step, index))

    def find(name: str) -> list[tuple[WalkthroughStep, int]]:
        found = []
        for user, index in direct.get(name, ()):
            results = [] if user.entry.terms else [pair for q in user.quantities for pair in find(q.name)]
            found += [(user, index)] if user.entry.terms else results
        return found

    return find


def _backward_step(step: WalkthroughStep, users: Users) -> WalkthroughStep:
    quantities = tuple(quantity for quantity in step.quantities if quantity.gradient is not None)
    formulas, uses = [], dict[tuple[str, str], None]()
    for quantity in quantities:
        found = users(quantity.name)
        if terms := _sum_of_terms(found):
            formulas.append(f"∂{quantity.symbol} = {terms}")
        for user, index in found:
            uses |= dict.fromkeys(_inputs_of_term(user, index))
    entry = step.entry
    formula = "    ".join([*formulas, *([entry.parameter_gradients] if entry.parameter_gradients else [])])
    title = substituted(BOXES["backward"], title=entry.title)
    back = replace(entry, title=title, formula=formula, formula_zh="", text=entry.backward_text)
    return WalkthroughStep(f"{step.name}.gradient", back, quantities, tuple(uses), "backward", gradients=True)


def _sum_of_terms(found: Sequence[tuple[WalkthroughStep, int]]) -> str:
    """Return the sum of the terms of all users; a term shared by several (layers that read the memory) gets a Σ.

    Definitions inside a term ("…,   g = …") follow the sum.
    """
    terms = [user.entry.terms[index] for user, index in found if index < len(user.entry.terms)]
    split = {term: term.partition(",   ") for term in terms}
    summands = [f"Σ ({head})" if terms.count(term) > 1 else head for term, (head, _, _) in split.items()]
    return ",   ".join([" + ".join(summands), *(rest for _, _, rest in split.values() if rest)])


def _inputs_of_term(user: WalkthroughStep, index: int) -> Iterator[tuple[str, str]]:
    """Yield the parts of a user's term: gradients of its results, its matrices, and the values that it needs."""
    term = user.entry.terms[index]
    for quantity in user.quantities:
        if quantity.gradient is not None and f"∂{quantity.symbol}" in term:
            yield quantity.name, "gradient"
        elif quantity.along[0] == "input" and quantity.symbol in term:
            yield quantity.name, "value"
    if user.entry.needs == "others":
        yield from (use for i, use in enumerate(user.uses) if i != index)
    elif user.entry.needs == "self":
        yield user.uses[index]
    elif user.entry.needs == "out":
        yield user.quantities[-1].name, "value"


# ----------------------------------------------------------------------------------------- one parameter and its update


def update_steps(q: Quantities, learning_rate: float, max_features: int) -> list[WalkthroughStep]:
    """Return the steps of one update: gradient as a sum over positions, new values, the loss before and after."""
    recorded, element = q.recorded, q.recorded.element
    old, gradient = recorded.parameters[element.name], recorded.of_parameters[element.name]
    names = {_loss_name(positions): positions for positions in recorded.shares}
    shares = {f"∂{name}/∂W": recorded.shares[positions] for name, positions in names.items()}
    windows = {
        symbol: _window(element, matrix, symbol, max_features)
        for symbol, matrix in {**shares, "∂L/∂W": gradient, "W": old, "W new": recorded.updated}.items()
    }
    number = {symbol: float(window.value[0][window.mark]) for symbol, window in windows.items()}
    tokens = "; ".join(f"{name}: {_tokens(q, positions)}" for name, positions in names.items())
    slope, summands = number["∂L/∂W"], " + ".join(_digits(number[symbol], factor=True) for symbol in shares)
    part = _fused_part(q, element)
    before, after = _digits(number["W"]), _digits(number["W new"])
    losses = q.number("loss", "L before", recorded.loss), q.number("loss", "L after", recorded.loss_after)
    return [
        WalkthroughStep(
            "sum over positions",
            ENTRIES["shared weight"].filled(shares=" + ".join(shares), tokens=tokens, part=part),
            tuple(windows[symbol] for symbol in (*shares, "∂L/∂W")),
            part="backward",
            equation=f"{summands} = {_digits(slope)}",
        ),
        WalkthroughStep(
            "update",
            ENTRIES["update"].filled(element=f"{element.name}[{element.row}, {element.column}]", part=part),
            tuple(windows[symbol] for symbol in ("W", "∂L/∂W", "W new")),
            part="update",
            equation=f"{before} − {_digits(learning_rate)} × {_digits(slope, factor=True)} = {after}",
        ),
        WalkthroughStep("loss after", ENTRIES["loss after"], losses, part="update"),
    ]


def _fused_part(q: Quantities, element: ParameterElement) -> Text:
    """Return which of the matrices stacked in one parameter holds the row of the element; empty if it is not fused."""
    layer, _, kind = element.name.rpartition(".")
    parent, _, fused = layer.rpartition(".")
    if fused not in _FUSED or kind != "weight":
        return {"en": "", "zh": ""}
    sizes = q.network.get_submodule(parent).parts
    assert isinstance(sizes, tuple)
    ends = list(itertools.accumulate(sizes))
    ranges = [(letter, end - size, end - 1) for letter, size, end in zip(_FUSED[fused], sizes, ends, strict=True)]
    letter, first, _ = next(part for part in ranges if part[1] <= element.row <= part[2])
    return {
        "en": " It stacks "
        + ", ".join(f"W_{letter} (rows {first} to {last})" for letter, first, last in ranges)
        + f": row {element.row} is output {element.row - first} of W_{letter}.",
        "zh": "它由"
        + "、".join(f" W_{letter}（第 {first} 至 {last} 行）" for letter, first, last in ranges)
        + f"叠放而成：第 {element.row} 行是 W_{letter} 的第 {element.row - first} 个输出（行和输出都从 0 数起）。",
    }


def _loss_name(positions: tuple[int, ...]) -> str:
    """Return L₁, L₂, …; L₄₊ for several positions together."""
    number = str(positions[0] + 1).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
    return f"L{number}{'₊' if len(positions) > 1 else ''}"


def _tokens(q: Quantities, positions: tuple[int, ...]) -> str:
    tokens = [q.labels.targets[position] for position in positions]
    return " ".join(tokens) if len(tokens) <= 3 else f"{tokens[0]} … {tokens[-1]}"


def _window(element: ParameterElement, parameter: Tensor, symbol: str, max_features: int) -> Quantity:
    """Return the part of the parameter around the element, as the model stores it."""
    matrix = parameter if parameter.dim() == 2 else parameter[:, None]
    row, column = element.row // max_features * max_features, element.column // max_features * max_features
    shown = matrix[None, row : row + max_features, column : column + max_features]
    along, size = ("output", "input"), (matrix.size(0), matrix.size(1))
    shape, axes = tuple(parameter.shape), along[: parameter.dim()]
    rows, columns = ([str(first + i) for i in range(max_features)] if first else None for first in (row, column))
    mark = (element.row - row, element.column - column)
    return Quantity(element.name, symbol, shown, None, along, shape, axes, size, rows, columns, mark)


def _digits(x: float, factor: bool = False) -> str:
    """Return six digits with a true minus sign; a negative factor in brackets."""
    digits = f"{x:.6g}".replace("-", "−")
    return f"({digits})" if factor and x < 0 else digits
