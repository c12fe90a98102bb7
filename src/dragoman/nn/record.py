"""Named points of a model, where a quantity of the paper can be recorded or replaced.

A `Tap` is an identity module.  A forward hook on it sees the tensor, and a hook that returns a tensor replaces it; the
path of the tap in the model (`decoder.layers.0.cross_attn.weights`) is its name.  `record` and `replace` put hooks on
the taps whose names match a pattern.

Fused kernels do not compute some quantities (attention weights and scores, the statistics of a norm, gates).  Code that
has both a kernel and a formula asks its taps whether they are `active` (have hooks) and `is_intervened` (a hook may
replace the tensor or need its gradient).  Only then does the output come from the formula; if hooks only observe, the
formula is computed in addition to the kernel, and the output is bit-identical to that without hooks.
"""

from __future__ import annotations

import fnmatch
import re
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.errors import UsageError, nearest
from dragoman.extras import Displayed


class Tap(nn.Module):
    """The identity, with named axes such as ("row", "head", "query", "key").

    observers: number of hooks that return nothing and need no gradient.
    """

    def __init__(self, *axes: str) -> None:
        super().__init__()
        self.axes = axes
        self.observers = 0

    @property
    def active(self) -> bool:
        """Whether the tap has hooks, so that a quantity that a fused kernel omits must be computed."""
        return bool(self._forward_hooks)

    @property
    def is_intervened(self) -> bool:
        """Whether a hook may replace the tensor or needs its gradient, so that the output must depend on it."""
        return len(self._forward_hooks) > self.observers

    def __call__(self, x: Tensor) -> Tensor:
        # nn.Module.__call__ takes as long as a small matrix product; without hooks it is not needed.
        return super().__call__(x) if self._forward_hooks else x

    def forward(self, x: Tensor) -> Tensor:
        return x


class ReadOnlyTap(Tap):
    """A quantity on which no output depends: it can be recorded but not replaced."""


def any_active(*taps: Tap) -> bool:
    return any(tap._forward_hooks for tap in taps)


def any_intervened(*taps: Tap) -> bool:
    return any(tap.is_intervened for tap in taps)


Change = Tensor | Sequence[Tensor] | Callable[[Tensor], Tensor]
"""A replacement: one tensor for all calls, one tensor per call (as recorded), or a function of the original tensor."""

_Hook = Callable[[nn.Module, Any, Tensor], Tensor | None]
"""A forward hook of PyTorch: module, inputs, output -> new output, or None to leave it."""

_TIME = ("position", "query", "key")
"""Axes along which successive calls of a search or of a recurrent network are concatenated."""


def tap_names(model: nn.Module) -> list[str]:
    """Return the names of all taps of a model, such as `decoder.layers.0.cross_attn.weights`."""
    return list(_taps(model))


class Recording(dict[str, list[Tensor]], Displayed):
    """Tap name -> tensors, one per call, in order; a recurrent network makes one call per position.

    axes: tap name -> names of the dimensions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.axes: dict[str, tuple[str, ...]] = {}

    def __missing__(self, name: str) -> list[Tensor]:
        recorded = ", ".join(self) or "nothing"
        raise UsageError(f"{name!r} was not recorded{nearest(name, list(self))}; recorded: {recorded}")

    def joined(self, name: str) -> Tensor:
        """Return the calls concatenated along the axis "position", "query" or "key".

        Raises UsageError if there were no calls, or if their shapes do not match (keys that grow with each call).
        """
        return _join(name, self[name], self.axes[name])

    def gradients(self, name: str) -> list[Tensor]:
        """Return d loss / d quantity, one tensor per call, after `record(..., gradients=True)` and `backward()`.

        Raises UsageError if there is no gradient.
        """
        gradients = [tensor.grad for tensor in self[name] if tensor.grad is not None]
        if len(gradients) < len(self[name]):
            raise UsageError(
                f"{name} has no gradient: record it with gradients=True, run the model with gradients enabled, and call"
                " backward() on a loss that depends on it, inside or after the `with` block"
            )
        return gradients

    def gradient(self, name: str) -> Tensor:
        """Return the gradients concatenated as in `joined`."""
        return _join(name, self.gradients(name), self.axes[name])


@contextmanager
def record(model: nn.Module, *patterns: str, gradients: bool = False) -> Generator[Recording, None, None]:
    """Context manager that records the tensors passing the taps whose names match a pattern (`*`, `?`, `[...]`).

    The model's output stays bit-identical: if a fused kernel does not compute a quantity, its formula is computed
    in addition, for the recorded taps only.  With `gradients`, the formula replaces the kernel (equal up to
    rounding), so that `Recording.gradient` is available.  Raises UsageError for a pattern without matches.
    """
    recording = Recording()
    with ExitStack() as hooks:
        for name, tap in _matching(model, patterns).items():
            recording[name], recording.axes[name] = [], tap.axes
            differentiable = gradients and not isinstance(tap, ReadOnlyTap)
            hooks.enter_context(_hooked(tap, _recorder(recording[name], differentiable), observes=not differentiable))
        yield recording


@contextmanager
def replace(model: nn.Module, changes: Mapping[str, Change]) -> Generator[None, None, None]:
    """Context manager that replaces the tensors passing the taps whose names match a pattern.

    changes: pattern -> `Change`; tensors are broadcast to the original shape.  Raises UsageError for a pattern without
    matches, an incompatible shape, more calls than tensors, and a read-only quantity (`output.probs`).
    """
    _matching(model, changes)  # reports all unknown patterns at once
    with ExitStack() as hooks:
        for pattern, change in changes.items():
            for name, tap in _matching(model, [pattern]).items():
                if isinstance(tap, ReadOnlyTap):
                    raise UsageError(f"{name} is read-only, because no output depends on it; replace output.logits")
                hooks.enter_context(_hooked(tap, _replacer(name, change), observes=False))
        yield


def _taps(model: nn.Module) -> dict[str, Tap]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}


def _matching(model: nn.Module, patterns: Iterable[str]) -> dict[str, Tap]:
    """Return the matching taps in the order of the model; raise UsageError that lists all patterns without matches."""
    taps, patterns = _taps(model), list(patterns)
    unknown = [pattern for pattern in patterns if not any(fnmatch.fnmatchcase(name, pattern) for name in taps)]
    if unknown:
        kinds = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in taps)
        missing = "; ".join(f"no tap matches {pattern!r}{nearest(pattern, list(taps))}" for pattern in unknown)
        raise UsageError(f"{missing}; available: {', '.join(kinds)}")
    return {name: tap for name, tap in taps.items() if any(fnmatch.fnmatchcase(name, p) for p in patterns)}


@contextmanager
def _hooked(tap: Tap, hook: _Hook, observes: bool) -> Generator[None, None, None]:
    handle = tap.register_forward_hook(hook)
    tap.observers += observes
    try:
        yield
    finally:
        handle.remove()
        tap.observers -= observes


def _recorder(into: list[Tensor], gradients: bool) -> _Hook:
    thread = threading.get_ident()

    def hook(module: nn.Module, inputs: Any, x: Tensor) -> Tensor | None:
        if not gradients:
            if threading.get_ident() == thread:  # a server may use the model in other threads meanwhile
                into.append(x.detach())
            return None
        # A separate node: other uses of the same tensor must not add to the gradient, nor later in-place operations
        # change the value.
        x = x.clone()
        if x.requires_grad:
            x.retain_grad()
        into.append(x)
        return x

    return hook


def _replacer(name: str, change: Change) -> _Hook:
    calls = 0

    def hook(module: nn.Module, inputs: Any, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if callable(change) and not isinstance(change, Tensor):
            new = change(x)
        elif isinstance(change, Tensor):
            new = change
        elif calls <= len(change):
            new = change[calls - 1]
        else:
            raise UsageError(f"{name}: {len(change)} tensors for call {calls}; give one tensor per call, or a function")
        try:
            return new.to(x).expand(x.shape)
        except (RuntimeError, AttributeError) as error:
            shape = tuple(new.shape) if isinstance(new, Tensor) else repr(new)
            raise UsageError(
                f"{name}: {shape} cannot replace a tensor of shape {tuple(x.shape)}; give one that broadcasts to it"
            ) from error

    return hook


def _join(name: str, calls: Sequence[Tensor], axes: Sequence[str]) -> Tensor:
    if not calls:
        raise UsageError(f"{name}: no calls were recorded; run the model inside the `with` block")
    if len(calls) == 1:
        return calls[0]
    along = next((i for i, axis in enumerate(axes) if axis in _TIME), None)
    try:
        if along is not None:
            return torch.cat(list(calls), dim=along)
    except RuntimeError:
        pass
    shapes = sorted({tuple(tensor.shape) for tensor in calls})
    raise UsageError(
        f"{name}: {len(calls)} calls of shapes {shapes} cannot be concatenated; use the list of tensors instead"
    )
