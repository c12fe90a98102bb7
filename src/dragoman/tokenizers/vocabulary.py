"""The data-dependent part of a model folder: how input becomes ids, and what the ids of the output mean."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from dragoman.errors import DataError, ModelFolderError, nearest
from dragoman.io.reading import COPY_AGAIN, read_json
from dragoman.tokenizers.tokenizer import Tokenizer

LABELS_FILE = "labels.json"
_MAX_SHOWN = 20
_MAX_PATCH_NUMBERS = 10_000_000
"""Limit for damaged files; a whole image of 1,000 x 1,000 pixels in colour has 3 million numbers."""


class LabelVocabulary:
    """Labels with ids from 1 (0 is PAD, which is ignored) for an input of text or image patches.

    tokenizer: for text.  patch_numbers: for images, the numbers per patch.
    """

    shared = False

    def __init__(self, labels: Sequence[str], tokenizer: Tokenizer | None = None, patch_numbers: int = 0) -> None:
        self.labels = tuple(labels)
        self.tokenizer = tokenizer
        self.patch_numbers = patch_numbers
        self.numbers = {label: number for number, label in enumerate(self.labels, start=1)}

    @property
    def source_size(self) -> int:
        """Number of source ids; for images, the numbers per patch."""
        return self.patch_numbers if self.tokenizer is None else self.tokenizer.source_size

    @property
    def target_size(self) -> int:
        return len(self.labels) + 1

    def number(self, label: str, where: str) -> int:
        """Return the id of a label.  Raises DataError, with the location `where`, if the label is unknown."""
        number = self.numbers.get(label)
        if number is None:
            known = ", ".join(self.labels[:_MAX_SHOWN]) + (" ..." if len(self.labels) > _MAX_SHOWN else "")
            raise DataError(
                f"{where}: the label {label!r} does not occur in the training data{nearest(label, self.labels)}; "
                f"accepted: {known}. Correct the label, or train on data that contains it."
            )
        return number

    def label(self, number: int) -> str:
        """Return the label of an id, which is at least 1."""
        return self.labels[number - 1]

    def files(self) -> dict[str, bytes]:
        """Return the files of a model folder: name -> content."""
        content = {"labels": self.labels, "patch_numbers": self.patch_numbers}
        files = {LABELS_FILE: json.dumps(content, ensure_ascii=False, indent=1).encode()}
        return files if self.tokenizer is None else files | self.tokenizer.files()

    @classmethod
    def load(cls, folder: Path) -> LabelVocabulary:
        """Load the labels of a model folder.  Raises ModelFolderError if they are missing or damaged."""
        file = folder / LABELS_FILE
        content = read_json(file, ModelFolderError, COPY_AGAIN)
        labels, patch_numbers = content.get("labels"), content.get("patch_numbers")
        problems = []
        if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
            problems.append("labels is not a list of texts")
        if type(patch_numbers) is not int or not 0 <= patch_numbers <= _MAX_PATCH_NUMBERS:
            problems.append(f"patch_numbers is not a number from 0 to {_MAX_PATCH_NUMBERS:,}")
        if problems:
            raise ModelFolderError(f"{file}: cannot be read: {' and '.join(problems)}. {COPY_AGAIN}")
        assert isinstance(labels, list) and isinstance(patch_numbers, int)
        return cls(labels, None if patch_numbers else Tokenizer.load(folder), patch_numbers)


Vocabulary = Tokenizer | LabelVocabulary
"""The vocabulary of a model; `files()` returns its files in a model folder."""


def load_vocabulary(folder: Path) -> Vocabulary:
    """Load the vocabulary of a model folder.  Raises ModelFolderError."""
    return LabelVocabulary.load(folder) if os.path.lexists(folder / LABELS_FILE) else Tokenizer.load(folder)
