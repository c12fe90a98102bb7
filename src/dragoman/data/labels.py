"""What a model that gives labels keeps of its data: the labels, and how its input becomes numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DataError, ModelFolderError, nearest
from dragoman.io.reading import read_json

__all__ = ["LABELS_FILE", "LabelVocabulary"]

LABELS_FILE = "labels.json"
_NAMED = 20
_COPY_AGAIN = "Copy the folder again, whole."
_MOST_NUMBERS = 10_000_000
"""Numbers of a patch, at most; an image of 1,000 x 1,000 pixels in colour has 3 million."""


class LabelVocabulary:
    """Labels by number, from 1: 0 is PAD, where no label counts.  The input is text, or patches of images."""

    shared = False

    def __init__(self, labels: Sequence[str], tokenizer: Tokenizer | None = None, patch_numbers: int = 0) -> None:
        """tokenizer: of text; patch_numbers: of images, how many numbers a patch has."""
        self.labels = tuple(labels)
        self.tokenizer = tokenizer
        self.patch_numbers = patch_numbers
        self.numbers = {label: number for number, label in enumerate(self.labels, start=1)}

    @property
    def source_size(self) -> int:
        return self.patch_numbers if self.tokenizer is None else self.tokenizer.source_size

    @property
    def target_size(self) -> int:
        return len(self.labels) + 1

    def number(self, label: str, where: str) -> int:
        """The number of a label.  Raises `DataError` for one that there is not; where: the place it stands in."""
        number = self.numbers.get(label)
        if number is None:
            known = ", ".join(self.labels[:_NAMED]) + (" ..." if len(self.labels) > _NAMED else "")
            raise DataError(
                f"{where}: the label {label!r} does not occur in the training data{nearest(label, self.labels)}; known "
                f"are {known}. Mend the label, or train on data that has it."
            )
        return number

    def label(self, number: int) -> str:
        """The label of a number from 1."""
        return self.labels[number - 1]

    def files(self) -> dict[str, bytes]:
        """File name -> content, as a model folder holds them."""
        about = {"labels": self.labels, "patch_numbers": self.patch_numbers}
        own = {LABELS_FILE: json.dumps(about, ensure_ascii=False, indent=1).encode()}
        return own if self.tokenizer is None else own | self.tokenizer.files()

    @classmethod
    def load(cls, folder: Path) -> LabelVocabulary:
        """The labels of a model folder.  Raises `ModelFolderError` where there are none."""
        file = folder / LABELS_FILE
        about = read_json(file, ModelFolderError, _COPY_AGAIN)
        labels, patch_numbers = about.get("labels"), about.get("patch_numbers")
        problems = []
        if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
            problems.append("labels is not a list of texts")
        if type(patch_numbers) is not int or not 0 <= patch_numbers <= _MOST_NUMBERS:
            problems.append(f"patch_numbers is not a number from 0 to {_MOST_NUMBERS:,}")
        if problems:
            raise ModelFolderError(f"{file}: cannot be read: {' and '.join(problems)}. {_COPY_AGAIN}")
        assert isinstance(labels, list) and isinstance(patch_numbers, int)
        return cls(labels, None if patch_numbers else Tokenizer.load(folder), patch_numbers)
