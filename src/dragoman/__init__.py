"""Dragoman: train, run and open up the Transformer of "Attention Is All You Need"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dragoman.config import Config as Config
    from dragoman.config import load_config as load_config
    from dragoman.evaluate import evaluate_texts as evaluate_texts
    from dragoman.inside.record import record as record
    from dragoman.inside.record import replace as replace
    from dragoman.label import Labeller as Labeller
    from dragoman.models.build import build_model as build_model
    from dragoman.parse import Parser as Parser
    from dragoman.text_generator import TextGenerator as TextGenerator
    from dragoman.training.trainer import train as train
    from dragoman.translate import Translation as Translation
    from dragoman.translate import Translator as Translator
    from dragoman.vectors import WordVectors as WordVectors

# Names are looked up when they are used: importing dragoman costs no import of torch.
_HOMES = {
    "Config": "dragoman.config",
    "Labeller": "dragoman.label",
    "Parser": "dragoman.parse",
    "TextGenerator": "dragoman.text_generator",
    "Translation": "dragoman.translate",
    "Translator": "dragoman.translate",
    "WordVectors": "dragoman.vectors",
    "build_model": "dragoman.models.build",
    "evaluate_texts": "dragoman.evaluate",
    "load_config": "dragoman.config",
    "record": "dragoman.inside.record",
    "replace": "dragoman.inside.record",
    "train": "dragoman.training.trainer",
}
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
