"""Greedy search, beam search and sampling over any source of log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.decoding.hypothesis import Hypothesis, length_penalty
from dragoman.decoding.settings import SearchSettings

if TYPE_CHECKING:
    from dragoman.decoding.pytorch.generate import generate as generate
    from dragoman.decoding.pytorch.stepper import EnsembleStepper as EnsembleStepper
    from dragoman.decoding.pytorch.stepper import ModelStepper as ModelStepper
    from dragoman.decoding.pytorch.stepper import Stepper as Stepper

# Imported on first use, because the native engine searches without PyTorch.
_MODULES = {
    "EnsembleStepper": "dragoman.decoding.pytorch.stepper",
    "ModelStepper": "dragoman.decoding.pytorch.stepper",
    "Stepper": "dragoman.decoding.pytorch.stepper",
    "generate": "dragoman.decoding.pytorch.generate",
}
__all__ = ["Hypothesis", "SearchSettings", "length_penalty", *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'dragoman.decoding' has no attribute {name!r}")
