"""One step of training, done for real: what the taps saw, the gradients, the loss of each word, the update.

Nothing of it stays: weights, gradients and modes of the network are afterwards what they were before.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.data.tokenizer import PAD
from dragoman.errors import nearest
from dragoman.models.seq2seq import Network
from dragoman.nn.record import Recording, record
from dragoman.training.loss import TokenLoss, cross_entropy

__all__ = ["Element", "Pair", "Run", "Share", "check_element", "one_step"]

_ALONE = 4
"""Target positions that are followed back by themselves: each costs a backward pass of its own."""


@dataclass(frozen=True)
class Pair:
    """src (1, S) token ids (or patches), src_mask (1, S) or None, tgt_in (1, T) and targets (1, T)."""

    src: Tensor
    src_mask: Tensor | None
    tgt_in: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Element:
    """One number of a parameter, (out, in) as the model stores it; of a vector column 0."""

    name: str
    row: int
    column: int


@dataclass(frozen=True)
class Share:
    """What the losses at some target positions alone send back to a parameter."""

    places: tuple[int, ...]
    gradient: Tensor


@dataclass(frozen=True)
class Run:
    """All that one step computed.

    values, gradients, axes: tap -> tensor without the row axis, in the order in which they came to be; gradients only
    where the loss depends on the quantity.  parameters, of_parameters: name -> parameter or buffer, and its gradient
    (a tied one under each of its names).  losses: target position -> its loss in nats; loss: their sum.  shares: of the
    parameter that holds the element; updated: that parameter after the update.  loss_after: of the same pair after it.
    """

    values: dict[str, Tensor]
    gradients: dict[str, Tensor]
    axes: dict[str, tuple[str, ...]]
    parameters: dict[str, Tensor]
    of_parameters: dict[str, Tensor]
    losses: dict[int, float]
    loss: float
    element: Element
    shares: list[Share]
    updated: Tensor
    loss_after: float


def one_step(
    network: Network, pair: Pair, smoothing: float, learning_rate: float, element: tuple[str, int, int] | None
) -> Run:
    """Forward, backward and one update by gradient descent, without dropout; the loss is the sum over target words."""
    with _set_apart(network), torch.enable_grad():
        with record(network, "*", gradients=True) as seen, _order_of(network, seen) as order:
            logits = network(pair.src, pair.src_mask, pair.tgt_in)[0]  # (T, V)
        words = {
            place: cross_entropy(logits[place : place + 1], pair.targets[0, place : place + 1], smoothing)[0]
            for place, target in enumerate(pair.targets[0].tolist())
            if target != PAD
        }
        loss = torch.stack(list(words.values())).sum()
        loss.backward(retain_graph=True)
        # Now, before single words go the same way back once more and add to what the taps hold.
        gradients = {name: grad for name in order if (grad := _gradient(seen, name)) is not None}
        parameters = dict(network.named_parameters(remove_duplicate=False))
        of_parameters = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        chosen = _default_element(network, of_parameters) if element is None else Element(*element)
        of_parameters.setdefault(chosen.name, torch.zeros_like(parameters[chosen.name]))
        shares = _shares(words, parameters[chosen.name])
        updated, after = _update(network, pair, smoothing, learning_rate, parameters[chosen.name])
    return Run(
        values={name: seen.joined(name).detach()[0] for name in order},
        gradients={name: gradient[0] for name, gradient in gradients.items()},
        axes={name: seen.axes[name][1:] for name in order},
        parameters={name: p.detach() for name, p in [*parameters.items(), *network.named_buffers()]},
        of_parameters=of_parameters,
        losses={place: float(word.detach()) for place, word in words.items()},
        loss=float(loss.detach()),
        element=chosen,
        shares=shares,
        updated=updated,
        loss_after=after,
    )


def check_element(network: Network, element: tuple[str, int, int]) -> list[str]:
    """What is wrong with the choice of a parameter's element."""
    name, row, column = element
    parameters = dict(network.named_parameters(remove_duplicate=False))
    if name not in parameters:
        return [f"no parameter is called {name!r}{nearest(name, parameters)}; network.named_parameters() lists them"]
    if not parameters[name].requires_grad:
        return [f"{name} is frozen: it has no gradient and no update; call requires_grad_() on it, or choose another"]
    shape = tuple(parameters[name].shape)
    if len(shape) > 2:
        return [f"{name} has the shape {shape}; accepted is a matrix or a vector"]
    rows, columns = (*shape, 1)[:2]
    if not (0 <= row < rows and 0 <= column < columns):
        return [f"{name}[{row}, {column}]: accepted are rows 0 to {rows - 1} and columns 0 to {columns - 1}"]
    return []


# ------------------------------------------------------------------------------------------------------------- backward


def _gradient(seen: Recording, name: str) -> Tensor | None:
    return None if any(call.grad is None for call in seen[name]) else seen.gradient(name)


def _shares(words: Mapping[int, Tensor], parameter: Tensor) -> list[Share]:
    """dL_t/dW for single target positions; where there are many, the last share is that of all others together."""
    places = list(words)
    alone = len(places) if len(places) <= _ALONE else _ALONE - 1
    groups = [(place,) for place in places[:alone]] + ([tuple(places[alone:])] if places[alone:] else [])
    shares = []
    for group in groups:
        loss = torch.stack([words[place] for place in group]).sum()
        (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True, materialize_grads=True)
        shares.append(Share(group, gradient))
    return shares


_TELLING = (
    "decoder.layers.0.cross_attn.kv.weight",
    "layers.0.self_attn.qkv.weight",
    "encoder.layers.0.self_attn.qkv.weight",
    "output.weight",
)
"""Matrices that every position shares, the most telling first."""


def _default_element(network: Network, of_parameters: Mapping[str, Tensor]) -> Element:
    """The largest gradient of W_V in the first attention of the decoder, or of the nearest that the network has."""
    matrices = [name for name, gradient in of_parameters.items() if gradient.dim() == 2]
    name = next((name for name in _TELLING if name in of_parameters), matrices[0])
    gradient, first = of_parameters[name], 0
    if name.endswith(("qkv.weight", "kv.weight")):
        parts = network.get_submodule(name.rpartition(".")[0].rpartition(".")[0]).parts
        assert isinstance(parts, tuple)
        first = sum(parts[:-1])  # the rows of W_V are the last ones
    place = int(gradient[first:].abs().argmax())
    return Element(name, first + place // gradient.size(1), place % gradient.size(1))


# --------------------------------------------------------------------------------------------------------------- update


def _update(
    network: Network, pair: Pair, smoothing: float, learning_rate: float, parameter: Tensor
) -> tuple[Tensor, float]:
    """The parameter after one step of gradient descent on all of them, and the loss after it."""
    parameters = [p for p in network.parameters() if p.grad is not None]
    with _restored(parameters):
        torch.optim.SGD(parameters, lr=learning_rate).step()
        with torch.no_grad():
            loss = network(pair.src, pair.src_mask, pair.tgt_in, TokenLoss(pair.targets, smoothing))
        return parameter.detach().clone(), float(loss.smoothed)


# -------------------------------------------------------------------------------------------------- leaving no traces


@contextmanager
def _set_apart(network: nn.Module) -> Generator[None, None, None]:
    """Evaluation mode and no gradients while open; then what there was before."""
    modes = {module: module.training for module in network.modules()}
    gradients = {p: p.grad for p in network.parameters()}
    network.eval()
    for p in gradients:
        p.grad = None
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for p, gradient in gradients.items():
            p.grad = gradient


@contextmanager
def _restored(parameters: Sequence[nn.Parameter]) -> Generator[None, None, None]:
    before = [p.detach().clone() for p in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for p, old in zip(parameters, before, strict=True):
                p.copy_(old)


@contextmanager
def _order_of(network: nn.Module, names: Iterable[str]) -> Generator[list[str], None, None]:
    """The names of the taps, each where something first passed it."""
    order: list[str] = []

    def noting(name: str) -> Callable[..., None]:
        def note(*call: object) -> None:
            if name not in noted:
                noted.add(name)
                order.append(name)

        return note

    noted: set[str] = set()
    handles = [network.get_submodule(name).register_forward_hook(noting(name)) for name in names]
    try:
        yield order
    finally:
        for handle in handles:
            handle.remove()
