"""Greedy search, beam search and sampling over anything that gives log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.decoding.hypothesis import Hypothesis, length_penalty
from dragoman.decoding.settings import SearchSettings

if TYPE_CHECKING:
    from dragoman.decoding.pytorch.generate import generate as generate
    from dragoman.decoding.pytorch.stepper import EnsembleStepper as EnsembleStepper
    from dragoman.decoding.pytorch.stepper import ModelStepper as ModelStepper
    from dragoman.decoding.pytorch.stepper import Stepper as Stepper

# Looked up when they are used: the engine searches without torch.
_HOMES = {
    "EnsembleStepper": "dragoman.decoding.pytorch.stepper",
    "ModelStepper": "dragoman.decoding.pytorch.stepper",
    "Stepper": "dragoman.decoding.pytorch.stepper",
    "generate": "dragoman.decoding.pytorch.generate",
}
__all__ = ["Hypothesis", "SearchSettings", "length_penalty", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dragoman.decoding' has no attribute {name!r}")
