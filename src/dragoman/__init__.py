"""Dragoman: train, run and inspect the Transformer of "Attention Is All You Need"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman._version import __version__

if TYPE_CHECKING:
    from dragoman.advice.new import plan_training as plan_training
    from dragoman.config import Config as Config
    from dragoman.config import load_config as load_config
    from dragoman.evaluation.metrics import evaluate_texts as evaluate_texts
    from dragoman.models.build import build_model as build_model
    from dragoman.nn.record import record as record
    from dragoman.nn.record import replace as replace
    from dragoman.pipelines.generation import Chat as Chat
    from dragoman.pipelines.generation import TextGenerator as TextGenerator
    from dragoman.pipelines.labelling import Labeller as Labeller
    from dragoman.pipelines.lines import Translation as Translation
    from dragoman.pipelines.parsing import Parser as Parser
    from dragoman.pipelines.translation import Translator as Translator
    from dragoman.training.trainer import train as train
    from dragoman.vectors import WordVectors as WordVectors

# Names are resolved on first use, so that importing dragoman does not import torch.
_HOMES = {
    "Chat": "dragoman.pipelines.generation",
    "Config": "dragoman.config",
    "Labeller": "dragoman.pipelines.labelling",
    "Parser": "dragoman.pipelines.parsing",
    "TextGenerator": "dragoman.pipelines.generation",
    "Translation": "dragoman.pipelines.lines",
    "Translator": "dragoman.pipelines.translation",
    "WordVectors": "dragoman.vectors",
    "build_model": "dragoman.models.build",
    "evaluate_texts": "dragoman.evaluation.metrics",
    "load_config": "dragoman.config",
    "plan_training": "dragoman.advice.new",
    "record": "dragoman.nn.record",
    "replace": "dragoman.nn.record",
    "train": "dragoman.training.trainer",
}
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        from dragoman.extras import TorchMissing, Unavailable, missing_wing, needs_torch

        if (missing := missing_wing(_HOMES[name], f"dragoman.{name}")) is not None:
            return Unavailable(missing)
        try:
            with needs_torch(f"dragoman.{name}"):
                return getattr(importlib.import_module(_HOMES[name]), name)
        except TorchMissing as error:
            return Unavailable(error)  # a program that imports the name may run as long as it does not use it
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
