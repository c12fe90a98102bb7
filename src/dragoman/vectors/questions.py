"""How good word vectors are: analogy questions, and people's scores of how alike two words are.

The files are those of the field: questions-words.txt (Mikolov et al. 2013a, section 4.1), and pairs as WordSim-353 or
SimLex-999 have them.
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

__all__ = [
    "Accuracy",
    "Correlation",
    "Question",
    "Row",
    "read_questions",
    "read_similarities",
    "score_questions",
    "spearman",
]

Question = tuple[str, str, str, str]
"""a, b, c, d: a is to b as c is to d."""

_BLOCK = 256
"""Questions scored at once: their scores for all words are 256 V numbers."""


class Row(NamedTuple):
    """One category: right answers of the questions whose four words are known, of all that were asked."""

    name: str
    right: int
    known: int
    asked: int

    @property
    def percent(self) -> float:
        """Of the known ones; NaN where none is."""
        return 100 * self.right / self.known if self.known else float("nan")


@dataclass(frozen=True)
class Accuracy:
    """Analogies by category and in all."""

    rows: list[Row]

    @property
    def total(self) -> Row:
        rows = self.rows
        return Row("all", sum(r.right for r in rows), sum(r.known for r in rows), sum(r.asked for r in rows))

    def lines(self) -> list[str]:
        """A line a category and one for all: percent right of the known, known of asked."""
        return [
            f"{row.name:30} {row.percent:5.1f} %   {row.right:6,} of {row.known:6,} known   ({row.asked:,} asked)"
            for row in [*self.rows, self.total]
        ]


class Correlation(NamedTuple):
    """spearman: from -1 to 1, NaN where fewer than three pairs are known."""

    spearman: float
    known: int
    asked: int


def read_questions(path: Path) -> dict[str, list[Question]]:
    """Category -> questions, of a file with `: category` lines and four words a line.  Raises DataError."""
    categories: dict[str, list[Question]] = {}
    name = "questions"
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith(":"):
            name = line[1:].strip()
        elif line.strip():
            words = line.split()
            if len(words) != 4:
                raise DataError(
                    f"{path}, line {number:,}: {len(words)} words ({clip(line)!r}); accepted are four, such as "
                    "'man king woman queen', or ': category'"
                )
            categories.setdefault(name, []).append((words[0], words[1], words[2], words[3]))
    return categories


def read_similarities(path: Path) -> list[tuple[str, str, float]]:
    """Pairs and people's score of them, of a file with word, word, score a line (tabs or spaces).  Raises DataError."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            left, right, score = line.split()
            pairs.append((left, right, float(score)))
        except ValueError:
            raise DataError(
                f"{path}, line {number:,}: {clip(line)!r}; accepted are word, word and a score, such as tiger cat 7.35"
            ) from None
    return pairs


def score_questions(
    unit: NDArray[np.float32], questions: Mapping[str, Sequence[Question]], place: Callable[[str], int | None]
) -> Accuracy:
    """unit (V, D): vectors 1 long.  place: a word's row, or None.  The answer is the word nearest to b - a + c, the
    three words of the question left out."""
    rows = []
    for name, asked in questions.items():
        places = [[place(word) for word in question] for question in asked]
        known = np.array([row for row in places if None not in row], dtype=np.int64).reshape(-1, 4)
        right = sum(_right(unit, known[i : i + _BLOCK]) for i in range(0, len(known), _BLOCK))
        rows.append(Row(name, right, len(known), len(asked)))
    return Accuracy(rows)


def _right(unit: NDArray[np.float32], known: NDArray[np.int64]) -> int:
    """known (n, 4): rows of a, b, c, d -> for how many d is first."""
    a, b, c, d = known.T
    scores = (unit[b] - unit[a] + unit[c]) @ unit.T  # (n, V); their order is that of the cosines
    np.put_along_axis(scores, known[:, :3], -np.inf, axis=1)
    return int((scores.argmax(axis=1) == d).sum())


def spearman(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Correlation of the ranks (n,), equal values sharing the mean of theirs; NaN below three or where none differ."""
    if len(x) < 3:
        return float("nan")
    a, b = (ranks - ranks.mean() for ranks in (_ranks(x), _ranks(y)))
    spread = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / spread) if spread else float("nan")


def _ranks(x: NDArray[Any]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])
