"""The mapping from kinds of [data] to tasks."""

from __future__ import annotations

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
from dragoman.io.run_log import Reporter
from dragoman.tokenizers import LabelVocabulary, Tokenizer, Vocabulary
from dragoman.training.tasks.dialogue import DialogueTask
from dragoman.training.tasks.images import ImageTask
from dragoman.training.tasks.labelling import ClassTask, TaggingTask
from dragoman.training.tasks.parsing import ParsingTask
from dragoman.training.tasks.task import Task
from dragoman.training.tasks.text import LanguageTask, MaskedTask
from dragoman.training.tasks.translation import TranslationTask


def open_task(config: Config, prepared: Path, reporter: Reporter, vocabulary: Vocabulary | None = None) -> Task:
    """Return the task of a configuration.

    prepared: folder of prepared data.  reporter: receives the counts.  vocabulary: of a model that was trained on data
    of the same kind; default: learned from the data.
    """
    labels = vocabulary if isinstance(vocabulary, LabelVocabulary) else None
    tokenizer = vocabulary if isinstance(vocabulary, Tokenizer) else None
    match config.data:
        case ParallelData():
            return TranslationTask(config, prepared, reporter, tokenizer)
        case TreeData():
            return ParsingTask(config, config.data, prepared, reporter, tokenizer)
        case TextData():
            return LanguageTask(config, config.data, prepared, reporter, tokenizer)
        case DialogueData():
            return DialogueTask(config, config.data, reporter, tokenizer)
        case MaskedData():
            return MaskedTask(config, config.data, prepared, reporter, tokenizer)
        case TaggedData():
            return TaggingTask(config, config.data, reporter, labels)
        case LabelledData():
            return ClassTask(config, config.data, reporter, labels)
        case ImageData():
            return ImageTask(config, config.data, reporter, labels)
