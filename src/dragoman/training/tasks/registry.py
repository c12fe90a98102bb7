"""The task of a configuration: the one place that knows which kind of data is learned from how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dragoman.config import Config, ImageData, LabelledData, MaskedData, ParallelData, TaggedData, TextData, TreeData
from dragoman.training.tasks.images import ImageTask
from dragoman.training.tasks.labelling import ClassTask, MaskedTask, TaggingTask
from dragoman.training.tasks.language import LanguageTask
from dragoman.training.tasks.parsing import ParsingTask
from dragoman.training.tasks.task import Task
from dragoman.training.tasks.translation import TranslationTask

__all__ = ["open_task"]


def open_task(config: Config, prepared: Path, log: Callable[[str], None]) -> Task:
    """What `config` wants learned; data is prepared in the folder `prepared`, and `log` gets the account of it."""
    match config.data:
        case ParallelData():
            return TranslationTask(config, prepared, log)
        case TreeData():
            return ParsingTask(config, config.data, prepared, log)
        case TextData():
            return LanguageTask(config, config.data, log)
        case MaskedData():
            return MaskedTask(config, config.data, log)
        case TaggedData():
            return TaggingTask(config, config.data, log)
        case LabelledData():
            return ClassTask(config, config.data, log)
        case ImageData():
            return ImageTask(config, config.data, log)
