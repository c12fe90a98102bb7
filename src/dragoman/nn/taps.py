"""Named points of a model where a quantity of the paper can be recorded or replaced.

A `Tap` is an identity module.  A forward hook on it sees the tensor, and a hook that returns a tensor replaces it; the
path of the tap in the model (`decoder.layers.0.cross_attn.weights`) is its name.

Fused kernels do not compute some quantities (attention weights and scores, the statistics of a norm, gates).  Code that
has both a kernel and a formula asks its taps whether they are `active` (have hooks) and `is_intervened` (a hook may
replace the tensor or need its gradient).  Only then does the output come from the formula; if hooks only observe, the
formula is computed in addition to the kernel, and the output is bit-identical to that without hooks.
"""

from __future__ import annotations

from torch import Tensor, nn


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
