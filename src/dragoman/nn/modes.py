"""Evaluation mode for the duration of a block."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluating"]


@contextmanager
def evaluating(module: nn.Module) -> Generator[None, None, None]:
    """Put `module` into evaluation mode (no dropout) and restore its mode afterwards; gradients are unaffected."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
