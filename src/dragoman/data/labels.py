"""What a model that gives labels keeps of its data: the labels, and how its input becomes numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dragoman.data.tokenizer import Tokenizer
from dragoman.errors import DataError, ModelFolderError, nearest

__all__ = ["LABELS_FILE", "LabelVocabulary"]

LABELS_FILE = "labels.json"
_NAMED = 20


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
        try:
            about = json.loads((folder / LABELS_FILE).read_text(encoding="utf-8"))
            labels, patch_numbers = [str(label) for label in about["labels"]], int(about["patch_numbers"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ModelFolderError(
                f"{folder / LABELS_FILE}: cannot be read ({error}); copy the folder again, whole"
            ) from None
        return cls(labels, None if patch_numbers else Tokenizer.load(folder), patch_numbers)
