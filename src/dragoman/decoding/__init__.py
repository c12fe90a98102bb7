"""Greedy search, beam search and sampling over any source of log-probabilities."""

from typing import TYPE_CHECKING

from dragoman.decoding.search_types import Hypothesis, SearchSettings, length_penalty
from dragoman.extras import lazy_names

if TYPE_CHECKING:
    from dragoman.decoding.pytorch.search import generate as generate
    from dragoman.decoding.pytorch.stepper import EnsembleStepper as EnsembleStepper
    from dragoman.decoding.pytorch.stepper import ModelStepper as ModelStepper
    from dragoman.decoding.pytorch.stepper import Stepper as Stepper

# The native engine searches without PyTorch.
_lazy, __getattr__ = lazy_names(
    __name__,
    {
        "dragoman.decoding.pytorch.search": "generate",
        "dragoman.decoding.pytorch.stepper": "EnsembleStepper ModelStepper Stepper",
    },
)
__all__ = ["Hypothesis", "SearchSettings", "length_penalty", *_lazy]
