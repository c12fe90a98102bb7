"""Named places where a quantity of the paper passes by, to be read or replaced.

A `Tap` returns what it is given.  An ordinary forward hook on it sees the tensor, and a hook that returns one
replaces it; the path of the tap in the model (`decoder.layers.0.cross_attn.weights`) is its name.

Fast kernels never make some quantities (weights, scores, the statistics of a norm, gates).  Code that has both a kernel
and a formula asks two questions of its taps: `active`, is anybody looking, and `is_intervened`, may the result differ
from what they were given, or is its gradient wanted?  Only then does the formula decide the outcome; for who merely
looks it is written out beside the kernel, whose result goes on unchanged to the bit.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["LastTap", "Tap", "active", "decide"]


class Tap(nn.Module):
    """The identity, with a name, axes and room for hooks.

    axes: what the dimensions of the tensor are called, such as ("row", "head", "query", "key").
    observers: how many of the hooks promise to return nothing and to want no gradient.
    """

    def __init__(self, *axes: str) -> None:
        super().__init__()
        self.axes = axes
        self.observers = 0

    @property
    def active(self) -> bool:
        """Whether anybody is looking: a quantity that a fused kernel never makes is made only then."""
        return bool(self._forward_hooks)

    @property
    def is_intervened(self) -> bool:
        """Whether what comes out has to go on: somebody may replace it, or wants its gradient."""
        return len(self._forward_hooks) > self.observers

    def __call__(self, x: Tensor) -> Tensor:
        # Without hooks nothing of a module's call is needed, which would cost as much as a small product.
        return super().__call__(x) if self._forward_hooks else x

    def forward(self, x: Tensor) -> Tensor:
        return x


class LastTap(Tap):
    """A quantity from which nothing follows: it can be read, not replaced."""


def active(*taps: Tap) -> bool:
    """Whether anybody looks at one of them."""
    return any(tap.active for tap in taps)


def decide(*taps: Tap) -> bool:
    """Whether any of them is intervened."""
    return any(tap.is_intervened for tap in taps)
