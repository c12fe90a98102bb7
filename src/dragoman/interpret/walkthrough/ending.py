"""How every story ends: logits and loss; on the way back what positions add to a shared weight; the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dragoman.interpret.walkthrough.blocks import step
from dragoman.interpret.walkthrough.phrases import PHRASES
from dragoman.interpret.walkthrough.quantities import Quantities
from dragoman.interpret.walkthrough.run import Element, Share
from dragoman.interpret.walkthrough.step import Phrase, Quantity, Step, text

__all__ = ["output_steps", "sum_step", "update_steps"]

_OUTPUT = text("Output", "输出")
_UPDATE = text("Update", "更新")
_SHARED = text("Shared weights", "共享权重")


def output_steps(q: Quantities, smoothing: float, hidden: str) -> list[Step]:
    """Logits, probabilities, loss.  hidden: the tap that holds the last hidden states."""
    logits = step(
        "output.logits", _OUTPUT, PHRASES["logits"], q.output_matrix(), q.tap("output.logits", "logits"), uses=[hidden]
    )
    probabilities = q.tap("output.probs", "P")
    steps = [] if q.tap("output.logits", "") is None else [logits]
    if probabilities is not None:
        steps.append(
            step(
                "output.probs", _OUTPUT, PHRASES["probs"], replace(probabilities, gradient=None), uses=["output.logits"]
            )
        )
    return [*steps, _loss_step(q, smoothing)]


def _loss_step(q: Quantities, smoothing: float) -> Step:
    places = list(q.run.losses)
    words = [q.labels.targets[place] for place in places]
    losses = q.column("loss of each word", "Lₜ", torch.tensor(list(q.run.losses.values()), dtype=torch.float64), words)
    right = None
    if "output.probs" in q.run.values:
        rows = q.run.values["output.probs"][places]
        ids = q.pair.targets[0, places]
        right = q.column("output.probs[0, t, target]", "P(right word)", rows.gather(1, ids[:, None])[:, 0], words)
    phrase = PHRASES["smoothed loss" if smoothing else "loss"]
    if smoothing:
        phrase = replace(phrase, formula=f"{phrase.formula},   ε = {smoothing:g}")
    return step("loss", _OUTPUT, phrase, right, losses, q.number("loss", "L", q.run.loss), uses=["output.probs"])


# --------------------------------------------------------------------------------------------- the element's parameter


def sum_step(q: Quantities, most: int) -> Step:
    """What single target positions send back to one matrix, and that their sum is its gradient."""
    shares, element = q.run.shares, q.run.element
    names = _share_names(shares)
    found = [
        _window(element, share.gradient, f"∂{name}/∂W", most) for name, share in zip(names, shares, strict=True)
    ] + [_window(element, q.run.of_parameters[element.name], "∂L/∂W", most)]
    words = "; ".join(f"{name}: {_words_of(q, share)}" for name, share in zip(names, shares, strict=True))
    phrase = Phrase(
        text("Positions add up in a shared weight", "各位置的梯度在共享权重里相加"),
        f"∂L/∂W = {' + '.join(f'∂{name}/∂W' for name in names)}",
        "the chain rule",
        text(
            f"Each loss goes back alone, then all together ({words}). Every position uses the same W, so what each "
            "wants to change is added. A row of W is an output here, as the model stores it.",
            f"先让每个损失单独反向，再一起反向（{words}）。所有位置用同一个 W，所以各自的梯度相加。"
            "这里 W 的一行是一个输出，与模型的存法相同。",
        ),
    )
    numbers = [_told(_element(share.gradient, element), factor=True) for share in shares]
    whole = _told(_element(q.run.of_parameters[element.name], element))
    equation = f"{' + '.join(numbers)} = {whole}"
    return replace(step("sum over positions", _SHARED, phrase, *found), part="backward", equation=equation)


def update_steps(q: Quantities, learning_rate: float, most: int) -> list[Step]:
    """Old - rate x gradient = new on one element, and the loss afterwards."""
    run, element = q.run, q.run.element
    old, gradient = run.parameters[element.name], run.of_parameters[element.name]
    numbers = [_element(x, element) for x in (old, gradient, run.updated)]
    phrase = Phrase(
        text("One step of gradient descent", "一步梯度下降"),
        "new = old − η · ∂L/∂W",
        "the optimizer, in its plainest form",
        text(
            f"All parameters move at once; this is {element.name}[{element.row}, {element.column}]. Adam, which "
            "trains real models, also divides by the size that gradients usually have.",
            f"所有参数同时更新；这里看的是 {element.name}[{element.row}, {element.column}]。"
            "训练真实模型的 Adam 还要除以梯度平时的大小。",
        ),
    )
    windows = [_window(element, x, s, most) for x, s in ((old, "W"), (gradient, "∂L/∂W"), (run.updated, "W new"))]
    moved = replace(
        step("update", _UPDATE, phrase, *windows),
        part="update",
        equation=f"{_told(numbers[0])} − {_told(learning_rate)} × {_told(numbers[1], True)} = {_told(numbers[2])}",
    )
    after = Phrase(
        text("The same pair again", "同一句对再来一次"),
        "L before → L after",
        "a forward pass with the new parameters",
        text(
            "One step down the slope: the loss of this pair falls, unless the step was too long.",
            "沿坡走一步：这一句对的损失下降，除非步子太大。",
        ),
    )
    losses = q.number("loss", "L before", run.loss), q.number("loss", "L after", run.loss_after)
    return [moved, replace(step("loss after", _UPDATE, after, *losses), part="update")]


def _share_names(shares: Sequence[Share]) -> list[str]:
    """L₁, L₂, …, or for several together L₄₊."""
    digits = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
    first = [str(share.places[0] + 1).translate(digits) for share in shares]
    return [f"L{number}{'₊' if len(share.places) > 1 else ''}" for number, share in zip(first, shares, strict=True)]


def _words_of(q: Quantities, share: Share) -> str:
    words = [q.labels.targets[place] for place in share.places]
    return " ".join(words) if len(words) <= 3 else f"{words[0]} … {words[-1]}"


def _window(element: Element, matrix: Tensor, symbol: str, most: int) -> Quantity:
    """The part of the parameter around the element, as the model stores it."""
    wide = matrix if matrix.dim() == 2 else matrix[:, None]
    row, column = element.row // most * most, element.column // most * most
    shown = wide[row : row + most, column : column + most]
    return Quantity(
        element.name,
        symbol,
        tuple(matrix.shape),
        ("output", "input")[: matrix.dim()],
        shown[None],
        None,
        (wide.size(0), wide.size(1)),
        ("output", "input"),
        first=(row, column),
        mark=(element.row - row, element.column - column),
    )


def _element(matrix: Tensor, element: Element) -> float:
    wide = matrix if matrix.dim() == 2 else matrix[:, None]
    return float(wide[element.row, element.column])


def _told(x: float, factor: bool = False) -> str:
    """Six digits with a true minus sign; a negative factor stands in brackets."""
    digits = f"{x:.6g}".replace("-", "−")
    return f"({digits})" if factor and x < 0 else digits
