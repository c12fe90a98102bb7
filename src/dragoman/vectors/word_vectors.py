"""Words and their vectors: what is near, how alike are two, king - man + woman.

Letters: V words, D size of a vector, n pairs or questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.errors import DataError, UsageError, nearest
from dragoman.vectors.files import read_vectors, write_vectors
from dragoman.vectors.picture import write_picture
from dragoman.vectors.questions import Accuracy, Correlation, Question, score_questions, spearman

__all__ = ["DISTANCES", "MEASURES", "Measure", "Neighbour", "WordVectors"]

Measure = Literal["cosine", "dot", "euclidean", "mahalanobis"]
MEASURES: tuple[str, ...] = get_args(Measure)
DISTANCES = ("euclidean", "mahalanobis")
"""Measures that are small where two words are alike; the others are large there."""

_BEGINS = "▁"
"""How a sentencepiece vocabulary marks a piece that begins a word."""


class Neighbour(NamedTuple):
    """A word and its value by the measure that was asked for."""

    word: str
    value: float


class WordVectors:
    """V words with a vector of D numbers each; a word that is not there in its capitals is looked up in small letters.

    Four measures.  Two are the other two in other coordinates: the cosine is the dot product of vectors made 1 long,
    the Mahalanobis distance the Euclidean one after whitening, x -> L^-1 (x - mean) with L L^T = covariance of all
    vectors.  1 % of the mean variance is added on its diagonal, so that it can be inverted even where V < D.
    """

    def __init__(self, words: Sequence[str], matrix: ArrayLike) -> None:
        """words: V, all different.  matrix (V, D), kept in float32.  Raises DataError where the two do not fit."""
        self.words = list(words)
        self.matrix: NDArray[np.float32] = np.asarray(matrix, dtype=np.float32)
        self.index = {word: i for i, word in enumerate(self.words)}
        self._spaces: dict[str, NDArray[np.float32]] = {}
        if self.matrix.ndim != 2 or len(self.words) != len(self.matrix) or not self.matrix.size:
            raise DataError(
                f"{len(self.words):,} words and a matrix of shape {self.matrix.shape}: accepted is one row a word, "
                "at least one number in it"
            )
        if len(self.index) < len(self.words):
            twice = next(word for i, word in enumerate(self.words) if self.index[word] != i)
            raise DataError(f"the word {twice!r} has two vectors; accepted is one a word")
        if not np.isfinite(self.matrix).all():
            row = int(np.flatnonzero(~np.isfinite(self.matrix).all(axis=1))[0])
            raise DataError(f"the vector of {self.words[row]!r} holds a number that is not finite; train or copy anew")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return self._place(word) is not None

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        """The vector (D,) of a word.  Raises UsageError with the nearest name where there is none."""
        vector: NDArray[np.float32] = self.matrix[self._find(word)]
        return vector

    # ------------------------------------------------------------------------------------------------------- questions

    def neighbours(self, word: str, count: int = 10, measure: Measure = "cosine") -> list[Neighbour]:
        """The `count` words most like `word`, the nearest first, itself left out."""
        space, place = self._space(measure), self._find(word)
        return self._best(_compare(space, space[place], measure), count, {place}, measure)

    def similarity(self, a: str, b: str, measure: Measure = "cosine") -> float:
        """How alike (cosine, dot) or how far apart (Euclidean, Mahalanobis) two words are."""
        space = self._space(measure)
        return float(_compare(space[self._find(a)], space[self._find(b)], measure))

    def analogy(self, a: str, b: str, c: str, count: int = 1) -> list[Neighbour]:
        """a is to b as c is to ...: the words nearest to b - a + c by cosine, a, b and c left out.

        `analogy("man", "king", "woman")` is king - man + woman.  Vectors are made 1 long first (3CosAdd: Mikolov et al.
        2013c; Levy and Goldberg 2014).
        """
        unit = self._space("cosine")
        i, j, k = (self._find(word) for word in (a, b, c))
        values = unit @ _unit(unit[j] - unit[i] + unit[k])
        return self._best(values, count, {i, j, k}, "cosine")

    def accuracy(self, questions: Mapping[str, Sequence[Question]]) -> Accuracy:
        """How many analogies (`read_questions`) have the right word in first place, of those whose words are known."""
        return score_questions(self._space("cosine"), questions, self._place)

    def correlation(self, pairs: Sequence[tuple[str, str, float]], measure: Measure = "cosine") -> Correlation:
        """Spearman's rank correlation with people's scores of pairs (`read_similarities`), of those that are known.

        Distances count with a minus, so that more is better for every measure.
        """
        space = self._space(measure)
        places = [(self._place(a), self._place(b), score) for a, b, score in pairs]
        known = [row for row in places if None not in row]
        if not known:
            return Correlation(float("nan"), 0, len(pairs))
        left, right, scores = (np.array(column) for column in zip(*known, strict=True))
        ours = _compare(space[left], space[right], measure)
        return Correlation(spearman(-ours if measure in DISTANCES else ours, scores), len(known), len(pairs))

    # ------------------------------------------------------------------------------------------------------------ disk

    def picture(self, words: Sequence[str], path: str | Path, arrows: Sequence[tuple[str, str]] = ()) -> Path:
        """Draw words as points in the plane of their two principal components: one SVG that needs nothing else.

        Directions, not lengths, are drawn (vectors made 1 long).  arrows: pairs of these words to be joined.
        """
        words = list(dict.fromkeys(words))
        vectors = self._space("cosine")[[self._find(word) for word in words]]
        return write_picture(Path(path), words, vectors, arrows)

    def save(self, path: str | Path) -> Path:
        """Write `.safetensors`, or under any other suffix word2vec's text format; whole or not at all."""
        return write_vectors(Path(path), self.words, self.matrix)

    @classmethod
    def load(cls, path: str | Path) -> WordVectors:
        """Read what `save` wrote, or another program's text file (`.gz`, `.xz`, `.zst` too); a folder: `of_model`.

        Raises DataError, naming the line, where the file is not one of these.
        """
        return cls.of_model(path) if Path(path).is_dir() else cls(*read_vectors(Path(path)))

    @classmethod
    def of_model(cls, path: str | Path) -> WordVectors:
        """The source embedding of a trained model: its pieces of words, the special ones left out.

        Raises ModelFolderError where there is no model, UsageError where it reads no words.
        """
        from dragoman.vectors.of_model import read_embedding

        return cls(*read_embedding(path))

    # --------------------------------------------------------------------------------------------------------- details

    def _place(self, word: str) -> int | None:
        names = (_BEGINS + word, word, _BEGINS + word.lower(), word.lower())
        return next((self.index[name] for name in names if name in self.index), None)

    def _find(self, word: str) -> int:
        place = self._place(word)
        if place is None:
            choices = (known.removeprefix(_BEGINS) for known in self.words)
            raise UsageError(
                f"no vector for {word!r}{nearest(word.lower(), choices)}; accepted: one of the {len(self):,} words "
                "these vectors were made for"
            )
        return place

    def _space(self, measure: str) -> NDArray[np.float32]:
        """The vectors (V, D) in the coordinates of a measure."""
        if measure not in MEASURES:
            raise UsageError(f"measure = {measure!r}{nearest(measure, MEASURES)}: accepted: {', '.join(MEASURES)}")
        if measure not in self._spaces:
            makers = {"cosine": _unit, "mahalanobis": _whitened}
            self._spaces[measure] = makers[measure](self.matrix) if measure in makers else self.matrix
        return self._spaces[measure]

    def _best(self, values: NDArray[Any], count: int, without: set[int], measure: str) -> list[Neighbour]:
        order = np.argsort(values if measure in DISTANCES else -values, kind="stable")[: count + len(without)]
        rows = [int(i) for i in order if int(i) not in without][:count]
        return [Neighbour(self.words[i], float(values[i])) for i in rows]


def _compare(x: NDArray[Any], y: NDArray[Any], measure: str) -> NDArray[Any]:
    """(..., D) and (..., D), in the coordinates of the measure -> (...)."""
    if measure in DISTANCES:
        return np.asarray(np.linalg.norm(x - y, axis=-1))
    return np.asarray(np.einsum("...d,...d->...", x, y))


def _unit(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """(..., D), every vector 1 long; one of zeros stays so."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.asarray(x / np.maximum(length, np.finfo(np.float32).tiny), dtype=np.float32)


def _whitened(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """L^-1 (x - mean) for every row x, where L L^T is the covariance with 1 % of the mean variance on its diagonal."""
    centred = matrix.astype(np.float64) - matrix.mean(axis=0, dtype=np.float64)
    covariance = centred.T @ centred / len(centred)  # (D, D)
    ridge = 0.01 * np.trace(covariance) / len(covariance) or 1.0  # 1: all vectors are one and the same
    lower = np.linalg.cholesky(covariance + ridge * np.eye(len(covariance)))
    return np.asarray(np.linalg.solve(lower, centred.T).T, dtype=np.float32)
