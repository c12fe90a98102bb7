"""Greedy search, beam search and sampling over anything that gives log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.search.hypothesis import Hypothesis, length_penalty
from dragoman.search.settings import SearchSettings

if TYPE_CHECKING:
    from dragoman.search.generating import generate as generate
    from dragoman.search.stepper import EnsembleStepper as EnsembleStepper
    from dragoman.search.stepper import ModelStepper as ModelStepper
    from dragoman.search.stepper import Stepper as Stepper

# Looked up when they are used: the engine searches without torch.
_HOMES = {
    "EnsembleStepper": "dragoman.search.stepper",
    "ModelStepper": "dragoman.search.stepper",
    "Stepper": "dragoman.search.stepper",
    "generate": "dragoman.search.generating",
}
__all__ = ["Hypothesis", "SearchSettings", "length_penalty", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dragoman.search' has no attribute {name!r}")
