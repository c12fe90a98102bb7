"""What a model folder keeps of the data: how input becomes ids, and what the output's ids mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from dragoman.data.labels import LABELS_FILE, LabelVocabulary
from dragoman.data.tokenizer import Tokenizer

__all__ = ["Vocabulary", "load_vocabulary"]


class Vocabulary(Protocol):
    """A `Tokenizer`, or a `LabelVocabulary` where the outputs are labels."""

    @property
    def source_size(self) -> int:
        """Ids a source may have; of images, the numbers of a patch."""

    @property
    def target_size(self) -> int:
        """Ids a target may have."""

    @property
    def shared(self) -> bool:
        """Whether both sides have the same ids."""

    def files(self) -> dict[str, bytes]:
        """File name -> content, as a model folder holds them."""


def load_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary of a model folder.  Raises `ModelFolderError`."""
    return LabelVocabulary.load(folder) if os.path.lexists(folder / LABELS_FILE) else Tokenizer.load(folder)
