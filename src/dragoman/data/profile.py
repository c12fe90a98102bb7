"""Statistics of the training text of a translation model, stored with it, so that unusual input can be recognized."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from dragoman.data.sentences import split_sentences
from dragoman.errors import ModelFolderError
from dragoman.io.reading import COPY_AGAIN, read_text

if TYPE_CHECKING:
    from dragoman.data.store import Store

__all__ = ["PROFILE", "Quantiles", "SideProfile", "TrainingProfile"]

PROFILE = "profile.json"
"""The file of a model folder that holds the profile."""
_SAMPLE = 10_000
_SEED = 1


class Quantiles(BaseModel):
    """Quantiles of a length: `q95` is the largest length of the shortest 95 % of the lines."""

    model_config = ConfigDict(frozen=True)

    q50: int
    q95: int
    q99: int
    q995: int
    q999: int
    longest: int

    @classmethod
    def of(cls, lengths: NDArray[np.int64] | Sequence[int]) -> Quantiles:
        """Return the quantiles of at least one length."""
        found = np.quantile(lengths, [0.5, 0.95, 0.99, 0.995, 0.999, 1], method="inverted_cdf").astype(int).tolist()
        return cls(**dict(zip(cls.model_fields, found, strict=True)))


class SideProfile(BaseModel):
    """One side of the training text.

    tokens: quantiles of the number of tokens, without the end of sentence, over all lines.  characters: of the number
    of characters, over the sampled lines.  alphabet: the characters of the sampled lines, sorted.
    """

    model_config = ConfigDict(frozen=True)

    tokens: Quantiles
    characters: Quantiles
    alphabet: str

    @classmethod
    def of(cls, tokens: NDArray[np.int64], texts: Sequence[str]) -> SideProfile:
        """Describe the lengths of all lines in tokens, and the text of the sampled ones."""
        alphabet = "".join(sorted(set().union(*texts)))
        return cls(tokens=Quantiles.of(tokens), characters=Quantiles.of([*map(len, texts)]), alphabet=alphabet)


class TrainingProfile(BaseModel):
    """Statistics of the sentence pairs that a model is trained on, after filtering.

    lines: number of pairs.  sampled: number of pairs in the sample, which is fixed: the same pairs give the same
    profile.  sentences_per_line: mean of the sampled source lines.  several_sentences: share of the sampled source
    lines with more than one sentence, 0 to 1.
    """

    model_config = ConfigDict(frozen=True)

    lines: int
    sampled: int
    sentences_per_line: float
    several_sentences: float
    source: SideProfile
    target: SideProfile

    @classmethod
    def of(cls, store: Store, source_language: str | None) -> TrainingProfile:
        """Describe the pairs of a prepared store; weights of the corpora are not considered."""
        count = min(_SAMPLE, len(store))
        numbers = sorted(random.Random(_SEED).sample(range(len(store)), count))
        sources, targets = zip(*map(store.text, numbers), strict=True)
        sentences = [len(split_sentences(text, source_language)) for text in sources]
        source_tokens, target_tokens = (lengths - 1 for lengths in store.lengths())
        return cls(
            lines=len(store),
            sampled=count,
            sentences_per_line=round(sum(sentences) / len(sentences), 4),
            several_sentences=round(sum(count > 1 for count in sentences) / len(sentences), 4),
            source=SideProfile.of(source_tokens, sources),
            target=SideProfile.of(target_tokens, targets),
        )

    @classmethod
    def load(cls, folder: Path) -> TrainingProfile:
        """Read the profile of a model folder.  Raises ModelFolderError if it is missing or damaged."""
        text = read_text(folder / PROFILE, ModelFolderError, COPY_AGAIN)
        try:
            return cls.model_validate_json(text)
        except ValueError as error:
            first = str(error).splitlines()[0]
            raise ModelFolderError(f"{folder / PROFILE}: cannot be read: {first}. {COPY_AGAIN}") from None

    def file(self) -> bytes:
        """Return the content of `profile.json`."""
        return self.model_dump_json(indent=1).encode()

    def __str__(self) -> str:
        return (
            f"{self.sentences_per_line:.2f} sentences per source line; 95 % of the source lines have at most "
            f"{self.source.tokens.q95:,} tokens"
        )
