"""Read and replace quantities by name while a model runs: the taps of `dragoman.nn.taps`, chosen by pattern."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.errors import UsageError, nearest
from dragoman.nn.taps import LastTap, Tap

__all__ = ["Change", "Recording", "record", "replace", "tap_names"]

Change = Tensor | Sequence[Tensor] | Callable[[Tensor], Tensor]
"""What stands in for a quantity: one tensor for every call, one a call (as recorded), or a function of the old one."""

_TIME = ("position", "query", "key")
"""The axes along which the calls of a search, or the steps of a recurrent network, follow each other."""


def tap_names(model: nn.Module) -> list[str]:
    """The names that `record` knows in this model, such as `decoder.layers.0.cross_attn.weights`."""
    return list(_taps(model))


class Recording(dict[str, list[Tensor]]):
    """Name -> tensors, one a call, in the order of the calls; a recurrent network makes a call a position.

    axes: name -> what the dimensions are called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.axes: dict[str, tuple[str, ...]] = {}

    def __missing__(self, name: str) -> list[Tensor]:
        recorded = ", ".join(self) or "nothing"
        raise UsageError(f"{name!r} was not recorded{nearest(name, list(self))}; recorded: {recorded}")

    def joined(self, name: str) -> Tensor:
        """The calls as one tensor, one behind the other along the axis "position", "query" or "key".

        Raises UsageError where nothing passed, or where calls do not fit together (keys that grow from call to call).
        """
        return _join(name, self[name], self.axes[name])

    def gradients(self, name: str) -> list[Tensor]:
        """d loss / d quantity, one a call; `record(..., gradients=True)` and a `backward()` must have come before.

        Raises UsageError where there is none.
        """
        found = [tensor.grad for tensor in self[name]]
        if any(grad is None for grad in found):
            raise UsageError(
                f"{name} has no gradient: record it with gradients=True, run the model with gradients enabled and call"
                " backward() on a loss that depends on it, inside the `with` or after it"
            )
        return [grad for grad in found if grad is not None]

    def gradient(self, name: str) -> Tensor:
        """The gradients as one tensor, as `joined`."""
        return _join(name, self.gradients(name), self.axes[name])


@contextmanager
def record(model: nn.Module, *patterns: str, gradients: bool = False) -> Generator[Recording, None, None]:
    """While open, collect what passes the taps that match a pattern: name -> tensors, one a call.

    The output does not change by a bit: where the model runs a fused kernel that never makes a quantity, the formula is
    written out beside it, in the recorded place and nowhere else.  With `gradients` the formula takes the kernel's
    place (equal up to rounding), so that the gradient of a quantity exists; read it with `Recording.gradient`.

    A pattern is a name with `*`, `?` and `[...]`.  Raises UsageError for one that matches nothing.
    """
    seen = Recording()
    with ExitStack() as hooks:
        for name, tap in _matching(model, patterns).items():
            seen[name], seen.axes[name] = [], tap.axes
            wanted = gradients and not isinstance(tap, LastTap)
            hooks.enter_context(_hooked(tap, _keeper(seen[name], wanted), observes=not wanted))
        yield seen


@contextmanager
def replace(model: nn.Module, changes: Mapping[str, Change]) -> Generator[None, None, None]:
    """While open, let something else go on in the place of what passes the taps that match.

    changes: pattern -> one tensor, one a call (what `record` gave), or a function of the old tensor.  A tensor is
    broadcast to the shape of the old one.  Raises UsageError for a pattern that matches nothing, a tensor of another
    shape, more calls than tensors, and for quantities that nothing is made of (`output.probs`).
    """
    _matching(model, changes)  # all that is unknown at once
    with ExitStack() as hooks:
        for pattern, change in changes.items():
            for name, tap in _matching(model, [pattern]).items():
                if isinstance(tap, LastTap):
                    raise UsageError(f"{name} is made to be read only, nothing follows from it; replace output.logits")
                hooks.enter_context(_hooked(tap, _changer(name, change), observes=False))
        yield


def _taps(model: nn.Module) -> dict[str, Tap]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}


def _matching(model: nn.Module, patterns: Iterable[str]) -> dict[str, Tap]:
    """The taps that match, in the model's order; UsageError with all patterns that match none."""
    taps, patterns = _taps(model), list(patterns)
    unknown = [pattern for pattern in patterns if not any(fnmatch.fnmatchcase(name, pattern) for name in taps)]
    if unknown:
        kinds = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in taps)
        asked = "; ".join(f"nothing is called {pattern!r}{nearest(pattern, list(taps))}" for pattern in unknown)
        raise UsageError(f"{asked}; there are: {', '.join(kinds)}")
    return {name: tap for name, tap in taps.items() if any(fnmatch.fnmatchcase(name, p) for p in patterns)}


@contextmanager
def _hooked(tap: Tap, hook: Callable[[Tensor], Tensor | None], observes: bool) -> Generator[None, None, None]:
    def of_module(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        return hook(output)

    handle = tap.register_forward_hook(of_module)
    tap.observers += observes
    try:
        yield
    finally:
        handle.remove()
        tap.observers -= observes


def _keeper(into: list[Tensor], gradients: bool) -> Callable[[Tensor], Tensor | None]:
    def keep(x: Tensor) -> Tensor | None:
        if not gradients:
            into.append(x.detach())
            return None
        # A node of its own: what else is made of the same tensor does not mix into the gradient, nor a later
        # in-place operation into the value.
        x = x.clone()
        if x.requires_grad:
            x.retain_grad()
        into.append(x)
        return x

    return keep


def _changer(name: str, change: Change) -> Callable[[Tensor], Tensor | None]:
    calls = 0

    def change_it(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if callable(change) and not isinstance(change, Tensor):
            new = change(x)
        elif isinstance(change, Tensor):
            new = change
        elif calls <= len(change):
            new = change[calls - 1]
        else:
            raise UsageError(f"{name}: {len(change)} tensors for call {calls}: give one for each, or a function")
        try:
            return new.to(x).expand(x.shape)
        except (RuntimeError, AttributeError) as error:
            shape = tuple(new.shape) if isinstance(new, Tensor) else repr(new)
            raise UsageError(
                f"{name}: {shape} cannot stand for a tensor of shape {tuple(x.shape)}: give one that broadcasts to it"
            ) from error

    return change_it


def _join(name: str, calls: Sequence[Tensor], axes: Sequence[str]) -> Tensor:
    if not calls:
        raise UsageError(f"{name}: nothing passed there; run the model inside the `with`")
    if len(calls) == 1:
        return calls[0]
    along = next((i for i, axis in enumerate(axes) if axis in _TIME), None)
    try:
        if along is not None:
            return torch.cat(list(calls), dim=along)
    except RuntimeError:
        pass
    shapes = sorted({tuple(tensor.shape) for tensor in calls})
    raise UsageError(f"{name}: {len(calls)} calls of shapes {shapes} are not one tensor; take them one by one")
