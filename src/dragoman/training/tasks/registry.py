"""The tasks, by kind of [data]."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dragoman.config import Config
from dragoman.io.run_log import Reporter
from dragoman.registry import find
from dragoman.tokenizers import Vocabulary
from dragoman.training.tasks.labelling import ClassTask, ImageTask, TaggingTask
from dragoman.training.tasks.task import Task
from dragoman.training.tasks.text import DialogueTask, LanguageTask, MaskedTask
from dragoman.training.tasks.translation import ParsingTask, TranslationTask

_TASKS: dict[str, Callable[..., Task]] = {
    "parallel": TranslationTask, "trees": ParsingTask, "text": LanguageTask, "dialogue": DialogueTask,
    "masked": MaskedTask, "tagged": TaggingTask, "labelled": ClassTask, "images": ImageTask,
}  # fmt: skip


def open_task(config: Config, prepared: Path, reporter: Reporter, vocabulary: Vocabulary | None = None) -> Task:
    """Return the task of a configuration.

    prepared: folder of prepared data.  reporter: receives the counts.  vocabulary: of a model that was trained on data
    of the same kind; default: learned from the data.
    """
    make = _TASKS.get(config.data.kind)
    if make is None:
        added = find("task", config.data.kind)
        assert added is not None  # checked by the configuration
        make = added.make
    return make(config, prepared, reporter, vocabulary)
