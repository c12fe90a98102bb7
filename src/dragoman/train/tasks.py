"""The task of a configuration: the one place that knows which kind of data is learned from how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dragoman.config import Config
from dragoman.train.images import open_images
from dragoman.train.labelling import open_labelling
from dragoman.train.language import open_language
from dragoman.train.parsing import open_parsing
from dragoman.train.task import Task
from dragoman.train.translation import TranslationTask

__all__ = ["open_task"]


def open_task(config: Config, prepared: Path, say: Callable[[str], None]) -> Task:
    """What `config` wants learned; data is prepared in the folder `prepared`, and `say` gets the account of it."""
    match config.data.kind:
        case "parallel":
            return TranslationTask(config, prepared, say)
        case "text":
            return open_language(config, prepared, say)
        case "masked" | "tagged" | "labelled":
            return open_labelling(config, prepared, say)
        case "images":
            return open_images(config, prepared, say)
        case "trees":
            return open_parsing(config, prepared, say)
