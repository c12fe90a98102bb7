"""The walkthrough as a whole: check the arguments, run the step, and return its steps as JSON that fits into a page."""

from __future__ import annotations

import base64
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.errors import check_problems
from dragoman.interpret.walkthrough.cells import CellReader, Reference, Vocabulary
from dragoman.interpret.walkthrough.figure import figure_data
from dragoman.interpret.walkthrough.quantities import Labels, Quantities, Quantity
from dragoman.interpret.walkthrough.steps import WalkthroughStep, backward_steps, forward_steps, update_steps
from dragoman.interpret.walkthrough.training_step import RecordedStep, TrainingPair, check_element
from dragoman.models.seq2seq import Model, Network
from dragoman.tokenizers import PAD

_MAX_EXACT = 10_000
"""Parameters up to which a model can be followed on paper: its numbers are not rounded."""

_MAX_NUMBERS = 130_000
"""Numbers in a whole walkthrough; with the remainders of products, about 3 MB of compact JSON."""

_SHARED = {"axes", "box", "columns", "formula", "kind", "name", "note", "rows", "shape", "shown", "source", "symbol",
           "title", "uses"}  # fmt: skip
"""What steps and tensors may have in common."""
_PLAIN = {"−∞": -math.inf, "∞": math.inf, "NaN": math.nan}

_FEATURE_AXES = ("feature", "input", "output")
_POSITION_AXES = ("position", "query", "key")


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
    max_features: int = 8,
) -> dict[str, Any]:
    """One training step on one pair as plain JSON: every quantity forwards, every gradient, one update.

    Args:
        src, src_mask: (1, S), as `Network.hidden` takes them; src_mask may be None.
        tgt_in, targets: (1, T), as the loss takes them.
        smoothing: label smoothing.  The loss is the sum over the targets in nats, without dropout.
        learning_rate: of the update, plain gradient descent.
        parameter: (name, row, column) of the element whose update is shown; None for one with a large gradient.
        max_features: features and tokens of the vocabulary shown per tensor.  Positions are truncated if the result
            would exceed about 3 MB.

    The network is not changed, and every number is one that it computed.  "steps" are in order, each with id, part
    ("forward", "backward", "update"), box, title, formula, source, note, uses (pairs of a quantity's name and "value"
    or "gradient") and tensors: name, symbol, kind, head, shape, axes, values, the labels of rows and columns (None:
    numbered from 0), "shown" if a side is truncated, such as [8, 512, "feature"], and "nominal" for ids.  A formula
    with words has a Chinese version "formula_zh".  Texts are {"en", "zh"}.  Raises UsageError with the complete list
    of problems.
    """
    pair = TrainingPair(src, src_mask, tgt_in, targets)
    problems = _pair_problems(network, pair, labels)
    if not 0 <= smoothing < 1:
        problems.append(f"smoothing = {smoothing}; accepted: 0 <= smoothing < 1")
    if not 0 < learning_rate < float("inf"):
        problems.append(f"learning_rate = {learning_rate}; accepted: a positive number, such as 0.01")
    if max_features < 1:
        problems.append(f"max_features = {max_features}; accepted: at least 1")
    problems += [] if parameter is None else check_element(network, parameter)
    check_problems("invalid arguments of walkthrough():", problems)
    recorded = RecordedStep(network, pair, smoothing, learning_rate, parameter)
    quantities = Quantities(recorded, labels, max_features)
    forward = forward_steps(quantities, smoothing)
    steps = [*forward, *backward_steps(forward), *update_steps(quantities, learning_rate, max_features)]
    limits = _axis_limits(steps, max_features)
    reader = CellReader(forward, lambda quantity: _shown(quantity, limits), _vocabulary(quantities, smoothing))
    exact = network.parameter_count() <= _MAX_EXACT
    return {
        "steps": list(_steps_json(steps, reader, limits, exact)), "rounded": not exact,
        "figure": figure_data(recorded, labels), "updates": recorded.updates, "loss": recorded.loss,
        "loss_after": recorded.loss_after, "learning_rate": learning_rate, "smoothing": smoothing,
        "parameter": [recorded.element.name, recorded.element.row, recorded.element.column],
    }  # fmt: skip


def compact(story: Mapping[str, Any]) -> dict[str, Any]:
    """Return a walkthrough as pages embed it; `drawWalkthrough` in walkthrough.js restores it.

    The tensor of a head lacks what it has in common with the one before it.  Values of `_SHARED` are indices of
    "shared".  Rounded numbers are float32 in base64, "numbers", of which a matrix has [index, rows, columns], a list
    0 columns.
    """
    shared: dict[str, int] = {}
    stored: dict[bytes, int] = {}

    def short(entry: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
        entry = {key: x for key, x in entry.items() if not entry.get("head") or before.get(key) != x}
        for key in entry.keys() & _SHARED:
            entry[key] = shared.setdefault(json.dumps(entry[key]), len(shared))
        for key in entry.keys() & {"values", "rest"} if story["rounded"] and "nominal" not in entry else ():
            rows = [row if isinstance(row, list) else [row] for row in entry[key]]
            numbers = np.array([[_PLAIN.get(x, x) for x in row] for row in rows], "<f4").tobytes()
            at = stored.setdefault(numbers, sum(map(len, stored)) // 4)
            entry[key] = [at, len(rows), len(rows[0]) if rows[0] is entry[key][0] else 0]
        return entry | ({"cells": short(entry["cells"], {})} if entry.get("cells") else {})

    steps = []
    for step in story["steps"]:
        tensors = [short(*pair) for pair in zip(step["tensors"], [{}, *step["tensors"]], strict=False)]
        steps.append(short(step, {}) | {"tensors": tensors})
    found = {"keys": sorted(_SHARED), "values": [*map(json.loads, shared)]}
    return {**story, "steps": steps, "shared": found, "numbers": base64.b64encode(b"".join(stored)).decode()}


def _pair_problems(network: Network, pair: TrainingPair, labels: Labels) -> list[str]:
    sides = {"src": pair.src, "tgt_in": pair.tgt_in, "targets": pair.targets}
    wrong = {name: tuple(x.shape) for name, x in sides.items() if x.dim() < 2 or x.size(0) != 1}
    if wrong:
        return [f"{name} of shape {shape}; accepted: one sentence, (1, positions)" for name, shape in wrong.items()]
    problems, labelled = [], {"source": "src", "targets": "targets"}
    if isinstance(network, Model):
        labelled["target_in"] = "tgt_in"
        inputs, targets = pair.tgt_in.size(1), pair.targets.size(1)
        if inputs != targets:
            problems.append(f"tgt_in has {inputs} positions and targets has {targets}; accepted: equal lengths")
    for side, name in labelled.items():
        given, positions = len(getattr(labels, side)), sides[name].size(1)
        if given != positions:
            problems.append(
                f"labels.{side} has {given} labels for the {positions} positions of {name}; give one for each"
            )
    if not bool((pair.targets != PAD).any()):
        problems.append(f"all targets are padding (id {PAD}), so there is no loss; give at least one token")
    return problems


# ------------------------------------------------------------------------------------------------------------- JSON


def _axis_limits(steps: Sequence[WalkthroughStep], max_features: int) -> dict[str, int]:
    """Return axis -> maximum size shown; of positions, as many as fit into `_MAX_NUMBERS`, at least 2."""
    quantities = [quantity for step in steps for quantity in step.quantities]
    lengths = (n for q in quantities for n, axis in zip(q.size, q.along, strict=True) if axis in _POSITION_AXES)
    positions = max(2, *lengths)
    while True:
        limits = dict.fromkeys(_FEATURE_AXES, max_features) | dict.fromkeys(_POSITION_AXES, positions)
        if positions == 2 or sum(q.value.size(0) * math.prod(_shown(q, limits)) for q in quantities) <= _MAX_NUMBERS:
            return limits
        positions -= 1


def _steps_json(
    steps: Sequence[WalkthroughStep], reader: CellReader, limits: Mapping[str, int], exact: bool
) -> Iterator[dict[str, Any]]:
    """Yield the steps as plain JSON: numbers with six digits unless `exact`, non-finite ones as text ("−∞")."""
    number_of: dict[Reference, int] = {}
    numbers = itertools.count()  # of the tensors, one per head, in the order of the steps
    for step in steps:
        kind = "gradient" if step.gradients else "value"
        for quantity in step.quantities:
            for head in range(quantity.value.size(0)):
                reference = Reference(kind, quantity.name, head if quantity.per_head else None)
                number_of.setdefault(reference, next(numbers))

    def plain(x: Any) -> Any:
        """Replace each reference by the number of its tensor, and round numbers."""
        if isinstance(x, Reference):
            return number_of[x]
        if isinstance(x, dict):
            return {key: plain(item) for key, item in x.items()}
        if isinstance(x, list | tuple):
            return [plain(item) for item in x]
        if not isinstance(x, float):
            return x
        if not math.isfinite(x):
            return "NaN" if math.isnan(x) else "∞" if x > 0 else "−∞"
        return x if exact else float(f"{x:.6g}")

    def tensors(step: WalkthroughStep, quantity: Quantity) -> Iterator[dict[str, Any]]:
        """Yield one tensor per head."""
        matrices = quantity.gradient if step.gradients else quantity.value
        assert matrices is not None
        rows, columns = shown = _shown(quantity, limits)
        cut = [[n, size, axis] for n, size, axis in zip(shown, quantity.size, quantity.along, strict=True) if n < size]
        cells = reader.cells(step, quantity)
        for head, matrix in enumerate(matrices[:, :rows, :columns].tolist()):
            optional = {
                "head": head if quantity.per_head else None, "shown": cut or None, "mark": quantity.mark,
                "nominal": quantity.nominal or None, "cells": None if cells is None else cells[head],
            }  # fmt: skip
            yield {
                "name": quantity.name, "symbol": f"∂{quantity.symbol}" if step.gradients else quantity.symbol,
                "kind": "gradient" if step.gradients else "value", "shape": quantity.shape, "axes": quantity.axes,
                "rows": None if quantity.rows is None else list(quantity.rows[:rows]),
                "columns": None if quantity.columns is None else list(quantity.columns[:columns]), "values": matrix,
            } | {key: value for key, value in optional.items() if value is not None}  # fmt: skip

    for step in steps:
        entry = step.entry
        optional = {
            "formula_zh": entry.formula_zh or None,
            "equation": step.equation,
            "symbols": reader.symbols(step) or None,
        }
        result = {
            "id": step.name, "part": step.part, "box": entry.box, "title": entry.title, "formula": entry.formula,
            "source": entry.source, "note": entry.text, "uses": step.uses,
            "tensors": [tensor for quantity in step.quantities for tensor in tensors(step, quantity)],
        }  # fmt: skip
        yield plain(result | {key: value for key, value in optional.items() if value is not None})


def _vocabulary(q: Quantities, smoothing: float) -> Vocabulary | None:
    logits = q.recorded.values.get("output.logits")
    if logits is None:
        return None
    targets, shown = q.pair.targets[0].to(logits.device), torch.tensor(q.shown_ids, device=logits.device)
    distribution = (1 - smoothing) * (targets[:, None] == shown).double() + smoothing / logits.size(-1)
    distribution = torch.where((targets != PAD)[:, None], distribution, 0.0)
    return Vocabulary(distribution, logits.double().exp().sum(-1, keepdim=True))


def _shown(quantity: Quantity, limits: Mapping[str, int]) -> tuple[int, int]:
    """Return the number of rows and columns shown."""
    sides = zip(quantity.value.shape[1:], quantity.along, strict=True)
    rows, columns = (min(size, limits.get(axis, size)) for size, axis in sides)
    return rows, columns
