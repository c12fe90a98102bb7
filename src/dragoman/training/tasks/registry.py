"""The mapping from kinds of [data] to tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dragoman.config import (
    Config,
    DialogueData,
    ImageData,
    LabelledData,
    MaskedData,
    ParallelData,
    TaggedData,
    TextData,
    TreeData,
)
from dragoman.training.tasks.dialogue import DialogueTask
from dragoman.training.tasks.images import ImageTask
from dragoman.training.tasks.labelling import ClassTask, TaggingTask
from dragoman.training.tasks.parsing import ParsingTask
from dragoman.training.tasks.task import Task
from dragoman.training.tasks.text import LanguageTask, MaskedTask
from dragoman.training.tasks.translation import TranslationTask

__all__ = ["open_task"]


def open_task(config: Config, prepared: Path, log: Callable[[str], None]) -> Task:
    """Return the task of a configuration; data are prepared in the folder `prepared`, and `log` receives the counts."""
    match config.data:
        case ParallelData():
            return TranslationTask(config, prepared, log)
        case TreeData():
            return ParsingTask(config, config.data, prepared, log)
        case TextData():
            return LanguageTask(config, config.data, log)
        case DialogueData():
            return DialogueTask(config, config.data, log)
        case MaskedData():
            return MaskedTask(config, config.data, log)
        case TaggedData():
            return TaggingTask(config, config.data, log)
        case LabelledData():
            return ClassTask(config, config.data, log)
        case ImageData():
            return ImageTask(config, config.data, log)
