"""A recorded training step: values and gradients of the taps, losses, parameters, the update.

The network is not changed: the update happens in a copy.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dragoman.errors import nearest
from dragoman.models.seq2seq import Network, evaluating
from dragoman.nn.record import record
from dragoman.tokenizers import PAD
from dragoman.training.loss import cross_entropy

_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Learning rates of the updates that are tried."""

_EPSILON = 1e-8

_MAX_SEPARATE = 4
"""Target positions whose loss is backpropagated separately: each costs a backward pass."""


class TrainingPair(NamedTuple):
    """src (1, S) token ids (or patches), src_mask (1, S) or None, tgt_in (1, T) and targets (1, T)."""

    src: Tensor
    src_mask: Tensor | None
    tgt_in: Tensor
    targets: Tensor


class ParameterElement(NamedTuple):
    """One element of a parameter as the model stores it, (out, in); the column of a vector is 0."""

    name: str
    row: int
    column: int


class RecordedStep:
    """Forward pass, backward pass and one update by gradient descent, without dropout; the loss sums over the targets.

    values, gradients, axes: by tap, without the row axis, in the order in which the taps were reached; gradients only
    of quantities that affect the loss.  parameters, of_parameters: name -> parameter or buffer, and its gradient (a
    tied one under each of its names).  losses: target position -> loss in nats; loss: their sum.  element: the given
    one, or one with a large gradient.  shares: target positions -> gradient of their losses alone for the parameter
    that contains the element; updated: that parameter after the update.  loss_after: the loss of the same pair then.
    updates: see `_updates`.
    """

    def __init__(
        self,
        network: Network,
        pair: TrainingPair,
        smoothing: float,
        learning_rate: float,
        element: tuple[str, int, int] | None,
    ) -> None:
        self.network, self.pair = network, pair
        order: dict[str, None] = {}  # the taps in the order of their first call
        with evaluating(network):
            with torch.enable_grad(), record(network, "*", gradients=True) as seen, ExitStack() as hooks:
                for name in seen:
                    tap = network.get_submodule(name)
                    hooks.enter_context(tap.register_forward_hook(lambda *call, name=name: order.setdefault(name)))
                logits = network(pair.src, pair.src_mask, pair.tgt_in)[0]
                losses = {
                    t: cross_entropy(logits[t : t + 1], pair.targets[0, t : t + 1], smoothing)[0]
                    for t, target in enumerate(pair.targets[0].tolist())
                    if target != PAD
                }
                loss = torch.stack(list(losses.values())).sum()
            parameters = dict(network.named_parameters(remove_duplicate=False))
            trained = {name: p for name, p in parameters.items() if p.requires_grad}
            found = torch.autograd.grad(loss, list(trained.values()), retain_graph=True, allow_unused=True)
            of_parameters = {name: g for name, g in zip(trained, found, strict=True) if g is not None}
            # Read the gradients of the taps now: later backward passes add to those that the taps retain.
            reached = [name for name in order if all(call.grad is not None for call in seen[name])]
            self.gradients = {name: seen.gradient(name)[0] for name in reached}
            self.element = _default_element(network, of_parameters) if element is None else ParameterElement(*element)
            chosen = parameters[self.element.name]
            of_parameters.setdefault(self.element.name, torch.zeros_like(chosen))
            rates = sorted({*_RATES, learning_rate})
            self.updates = _updates(network, pair, smoothing, of_parameters, self.element, rates)
        self.loss_after = self.updates[rates.index(learning_rate)]["loss"]
        self.updated = chosen.detach() - learning_rate * of_parameters[self.element.name]
        self.values = {name: seen.joined(name).detach()[0] for name in order}
        self.axes = {name: seen.axes[name][1:] for name in order}
        self.parameters = {name: p.detach() for name, p in [*parameters.items(), *network.named_buffers()]}
        self.of_parameters = of_parameters
        self.losses = {t: float(token.detach()) for t, token in losses.items()}
        self.loss = float(loss.detach())
        self.shares = _shares(losses, chosen)


@torch.no_grad()
def _updates(
    network: Network,
    pair: TrainingPair,
    smoothing: float,
    gradients: Mapping[str, Tensor],
    element: ParameterElement,
    rates: Sequence[float],
) -> list[dict[str, Any]]:
    """Return {"rule", "rate", "loss", "probabilities", "element"} of updates, each from the same weights.

    rule: "sgd", then "adam" (Kingma and Ba 2015), whose first step is rate · g / (|g| + 1e-8).  loss: of
    the pair; probabilities: of its targets, padding excluded; element: the new value of the element.
    """
    trial, before, kept = copy.deepcopy(network), dict(network.named_parameters()), pair.targets[0] != PAD
    targets, parameter = pair.targets[0, kept], trial.get_parameter(element.name)
    found = []
    for rule, rate in itertools.product(("sgd", "adam"), rates):
        for name, changed in trial.named_parameters():
            if (g := gradients.get(name)) is not None:
                changed.copy_(before[name] - rate * (g if rule == "sgd" else g / (g.abs() + _EPSILON)))
        logits = trial(pair.src, pair.src_mask, pair.tgt_in)[0, kept]
        update = {
            "rule": rule, "rate": rate, "loss": float(cross_entropy(logits, targets, smoothing)[0]),
            "probabilities": logits.softmax(-1).gather(1, targets[:, None])[:, 0].tolist(),
            "element": float(parameter.view(len(parameter), -1)[element.row, element.column]),
        }  # fmt: skip
        found.append(update)
    return found


def check_element(network: Network, element: tuple[str, int, int]) -> list[str]:
    """Return the problems of a choice (name, row, column) of a parameter's element."""
    name, row, column = element
    parameters = dict(network.named_parameters(remove_duplicate=False))
    if name not in parameters:
        return [f"unknown parameter {name!r}{nearest(name, parameters)}; network.named_parameters() lists all names"]
    if not parameters[name].requires_grad:
        return [f"{name} is frozen and gets no gradient; call requires_grad_() on it or choose another parameter"]
    shape = tuple(parameters[name].shape)
    if len(shape) > 2:
        return [f"{name} has shape {shape}; accepted: a matrix or a vector"]
    rows, columns = (*shape, 1)[:2]
    if not (0 <= row < rows and 0 <= column < columns):
        return [
            f"{name}[{row}, {column}] does not exist; accepted: rows 0 to {rows - 1} and columns 0 to {columns - 1}"
        ]
    return []


def _shares(losses: Mapping[int, Tensor], parameter: Tensor) -> dict[tuple[int, ...], Tensor]:
    """Return dL_t/dW per target position; if there are many, the last entry combines the remaining ones."""
    positions = list(losses)
    separate = len(positions) if len(positions) <= _MAX_SEPARATE else _MAX_SEPARATE - 1
    groups = [(t,) for t in positions[:separate]] + ([tuple(positions[separate:])] if positions[separate:] else [])
    sums = {group: torch.stack([losses[t] for t in group]).sum() for group in groups}
    return {
        group: torch.autograd.grad(loss, parameter, retain_graph=True, materialize_grads=True)[0]
        for group, loss in sums.items()
    }


def _default_element(network: Network, of_parameters: Mapping[str, Tensor]) -> ParameterElement:
    """Return the element with the largest gradient in the first W_V, else in the output matrix."""
    preferred = ("cross_attn.kv.weight", "self_attn.qkv.weight", "output.weight", "")
    matrices = {name: gradient for name, gradient in of_parameters.items() if gradient.dim() == 2}
    name = next(name for ending in preferred for name in matrices if name.endswith(ending))
    gradient, first = matrices[name], 0
    if name.endswith(preferred[:2]):
        parts = network.get_submodule(name.rpartition(".")[0].rpartition(".")[0]).parts
        assert isinstance(parts, tuple)
        first = sum(parts[:-1])  # the rows of W_V are the last ones
    index = int(gradient[first:].abs().argmax())
    return ParameterElement(name, first + index // gradient.size(1), index % gradient.size(1))
