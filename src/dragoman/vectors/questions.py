"""Evaluation of word vectors: analogy questions, and correlation with human similarity scores.

File formats: questions-words.txt (Mikolov et al. 2013a, section 4.1); word pairs as in WordSim-353 and SimLex-999.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DataError
from dragoman.io.lines import clip, read_lines

Question = tuple[str, str, str, str]
"""a, b, c, d: a is to b as c is to d."""

_BLOCK = 256
"""Questions per matrix product, which has _BLOCK x V results."""


class Row(NamedTuple):
    """The result of one category: correct answers, questions of known words only, all questions."""

    name: str
    right: int
    known: int
    asked: int

    @property
    def percent(self) -> float:
        """Correct answers in percent of the known questions; NaN if there are none."""
        return 100 * self.right / self.known if self.known else float("nan")


@dataclass(frozen=True)
class Accuracy:
    """Results by category, and in total."""

    rows: list[Row]

    @property
    def total(self) -> Row:
        return Row("all", *(sum(row[i] for row in self.rows) for i in (1, 2, 3)))  # type: ignore[misc]

    def lines(self) -> list[str]:
        """Return one line of text per category and one for the total."""
        return [
            f"{row.name:30} {row.percent:5.1f} %   {row.right:6,} of {row.known:6,} known   ({row.asked:,} asked)"
            for row in [*self.rows, self.total]
        ]


class Correlation(NamedTuple):
    """Spearman's correlation of `known` pairs out of `asked`; NaN for fewer than three known pairs."""

    spearman: float
    known: int
    asked: int


def read_questions(path: Path) -> dict[str, list[Question]]:
    """Read questions by category: lines of four words, and lines `: category`.  Raises DataError."""
    categories: dict[str, list[Question]] = {}
    name = "questions"
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith(":"):
            name = line[1:].strip()
        elif line.strip():
            words = line.split()
            if len(words) != 4:
                raise DataError(
                    f"{path}, line {number:,}: {len(words)} words ({clip(line)!r}); accepted: four, such as "
                    "'man king woman queen', or ': category'"
                )
            categories.setdefault(name, []).append((words[0], words[1], words[2], words[3]))
    return categories


def read_similarities(path: Path) -> list[tuple[str, str, float]]:
    """Read pairs with a human score: lines of word, word, score (tabs or spaces).  Raises DataError."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            left, right, score = line.split()
            pairs.append((left, right, float(score)))
        except ValueError:
            raise DataError(
                f"{path}, line {number:,}: {clip(line)!r}; accepted: word, word and score, such as tiger cat 7.35"
            ) from None
    return pairs


def score_questions(
    unit: NDArray[np.float32], questions: Mapping[str, Sequence[Question]], find: Callable[[str], int | None]
) -> Accuracy:
    """Answer each question with the word nearest to b - a + c, other than a, b and c.

    unit (V, D): vectors of length 1.  find: returns the row of a word, or None.
    """
    rows = []
    for name, asked in questions.items():
        found = [[find(word) for word in question] for question in asked]
        known = np.array([row for row in found if None not in row], dtype=np.int64).reshape(-1, 4)
        right = sum(_count_right(unit, known[i : i + _BLOCK]) for i in range(0, len(known), _BLOCK))
        rows.append(Row(name, right, len(known), len(asked)))
    return Accuracy(rows)


def _count_right(unit: NDArray[np.float32], known: NDArray[np.int64]) -> int:
    """known (n, 4): rows of a, b, c and d."""
    a, b, c, d = known.T
    scores = (unit[b] - unit[a] + unit[c]) @ unit.T  # (n, V), in the order of the cosines
    np.put_along_axis(scores, known[:, :3], -np.inf, axis=1)
    return int((scores.argmax(axis=1) == d).sum())


def spearman(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the correlation of the ranks of x (n,) and y (n,); equal values share their mean rank.

    NaN if n < 3 or all values of x or y are equal.
    """
    if len(x) < 3:
        return float("nan")
    a, b = (ranks - ranks.mean() for ranks in (_ranks(x), _ranks(y)))
    spread = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / spread) if spread else float("nan")


def _ranks(x: NDArray[Any]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])
