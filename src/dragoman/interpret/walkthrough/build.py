"""The walk-through as a whole: check what was given, do the step, tell it, make it plain JSON."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dragoman.data.tokenizer import PAD
from dragoman.errors import UsageError
from dragoman.interpret.walkthrough.backwards import backwards
from dragoman.interpret.walkthrough.blocks import BLOCKS, blocks
from dragoman.interpret.walkthrough.ending import output_steps, sum_step, update_steps
from dragoman.interpret.walkthrough.in_order import in_order
from dragoman.interpret.walkthrough.numbers import fitting_cut, step_json
from dragoman.interpret.walkthrough.quantities import Labels, Quantities
from dragoman.interpret.walkthrough.run import Pair, check_element, one_step
from dragoman.models.seq2seq import Model, Network

__all__ = ["walkthrough"]

_TINY = 10_000
"""Parameters up to which a model is for pen and paper: its numbers are given as they are, not rounded."""


def walkthrough(
    network: Network,
    src: Tensor,
    src_mask: Tensor | None,
    tgt_in: Tensor,
    targets: Tensor,
    labels: Labels,
    *,
    smoothing: float = 0.0,
    learning_rate: float = 0.01,
    parameter: tuple[str, int, int] | None = None,
    most: int = 8,
) -> dict[str, Any]:
    """One sentence through training once: every step forwards, every gradient back, one update, as plain JSON.

    src (1, S), src_mask (1, S) or None, tgt_in and targets (1, T): as `Network.hidden` and the loss take them.
    smoothing: of the labels.  The loss is the sum over the words, in nats, without dropout; the update is plain
    gradient descent with `learning_rate`, shown on element (name, row, column) of a parameter, None for one with a
    large gradient.  most: features and words shown of each tensor; positions are cut where the whole would pass about
    2.5 MB.  The network stays as it was.

    Every number is what the model computed.  "steps" are in order, each with id, part ("forward", "backward",
    "update"), box, title, formula, source, note, uses (pairs: what of other steps it is made of, "value" or "gradient")
    and tensors: name, symbol, kind, head, shape, axes, values, the names of rows and columns (None: numbered from 0),
    and "shown" where a side is cut, [8, 512, "feature"].  Texts are {"en", "zh"}.  Raises UsageError with all that is
    wrong.
    """
    pair = Pair(src, src_mask, tgt_in, targets)
    problems = _problems(network, pair, labels, smoothing, learning_rate, parameter, most)
    if problems:
        raise UsageError("\n".join(["no walk-through can be made of this", *(f"  - {p}" for p in problems)]))
    run = one_step(network, pair, smoothing, learning_rate, parameter)
    quantities = Quantities(network, run, pair, labels, most)
    forward = blocks(network, quantities) if isinstance(network, BLOCKS) else in_order(network, quantities)
    forward += output_steps(quantities, smoothing, forward[-1].name)
    steps = [*forward, *backwards(forward), sum_step(quantities, most), *update_steps(quantities, learning_rate, most)]
    cut = fitting_cut(steps, most, exact=network.parameter_count() <= _TINY)
    return {
        "steps": [step_json(step, cut) for step in steps],
        "loss": run.loss,
        "loss_after": run.loss_after,
        "learning_rate": learning_rate,
        "smoothing": smoothing,
        "parameter": [run.element.name, run.element.row, run.element.column],
    }


def _problems(
    network: Network,
    pair: Pair,
    labels: Labels,
    smoothing: float,
    learning_rate: float,
    parameter: tuple[str, int, int] | None,
    most: int,
) -> list[str]:
    problems = []
    for name, tensor in (("src", pair.src), ("tgt_in", pair.tgt_in), ("targets", pair.targets)):
        if tensor.dim() < 2 or tensor.size(0) != 1:
            problems.append(f"{name} of shape {tuple(tensor.shape)}: accepted is one sentence, (1, positions)")
    if problems:
        return problems
    sides = [("source", labels.source, "src", pair.src), ("targets", labels.targets, "targets", pair.targets)]
    if isinstance(network, Model):
        sides.append(("target_in", labels.target_in, "tgt_in", pair.tgt_in))
        if pair.tgt_in.size(1) != pair.targets.size(1):
            told, asked = pair.tgt_in.size(1), pair.targets.size(1)
            problems.append(f"{told} positions of tgt_in for {asked} targets: give as many")
    for side, words, name, tensor in sides:
        if len(words) != tensor.size(1):
            problems.append(f"labels.{side} has {len(words)} words for the {tensor.size(1)} positions of {name}")
    if not bool((pair.targets != PAD).any()):
        problems.append(f"all targets are padding (id {PAD}), so there is no loss: give at least one word")
    if not 0 <= smoothing < 1:
        problems.append(f"smoothing = {smoothing}: accepted is 0 up to, but not including, 1")
    if not 0 < learning_rate < float("inf"):
        problems.append(f"learning_rate = {learning_rate}: accepted is a number above 0, such as 0.01")
    if most < 1:
        problems.append(f"most = {most}: accepted is 1 or more features")
    return problems + ([] if parameter is None else check_element(network, parameter))
