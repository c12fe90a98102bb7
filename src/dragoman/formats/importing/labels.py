"""Models that predict labels: the names of the labels of a checkpoint, and the comparison of its predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from dragoman.formats.importing.family import ProblemList
from dragoman.formats.parity import TOLERANCE, Counts

Input = TypeVar("Input")


def label_names(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of the labels in the order of their ids; a name that occurs again gets its id.

    Raises ProblemList.
    """
    names = settings.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})  # the default of `transformers`
    problems = []
    if settings.get("problem_type") not in (None, "single_label_classification"):
        problems.append(f"problem_type = {settings['problem_type']!r}; accepted: 'single_label_classification'")
    count = len(names) if isinstance(names, dict) else 0
    if count < 2 or sorted(names) != sorted(map(str, range(count))):
        problems.append(f"id2label = {str(names)[:60]!r}; accepted: at least 2 names by id, from 0")
    elif not all(isinstance(name, str) and name.strip() for name in names.values()):
        problems.append("id2label has names that are empty or not text")
    if problems:
        raise ProblemList(problems)
    found: list[str] = []
    for token in range(count):
        name = names[str(token)]
        found.append(f"{name} ({token})" if name in found else name)
    return found


@dataclass(frozen=True)
class LabelParity:
    """The report: probabilities of all labels, and the most probable ones.

    outputs: predictions compared, one per token, text or image.  largest, mean: differences of the log-probabilities.
    """

    peer: str
    text: str
    cases: int
    outputs: int
    largest: float
    mean: float
    labels: Counts

    @property
    def met(self) -> bool:
        return self.largest < TOLERANCE and self.labels.different == 0

    def lines(self) -> list[str]:
        return [
            f"{self.peer}: {self.cases} {self.text}",
            f"log-probabilities of all labels: maximum difference {self.largest:.1e}, mean {self.mean:.1e}",
            f"most probable labels: {self.labels}",
        ]


def compare_labels(
    ours: Callable[[Input], Tensor], theirs: Callable[[Input], Tensor], inputs: Iterable[Input], peer: str, text: str
) -> LabelParity:
    """Compare two models, which return logits (outputs, labels) of an input in the same order of labels.

    text: description of the inputs.
    """
    largest, total, numbers, cases = 0.0, 0.0, 0, 0
    outcomes = torch.zeros(3, dtype=torch.long)  # same, ties, different
    for each in inputs:
        with torch.no_grad():
            a, b = ours(each).float().log_softmax(-1), theirs(each).float().log_softmax(-1)
        difference = (a - b).abs()
        cases, numbers = cases + 1, numbers + difference.numel()
        largest, total = max(largest, _number(difference.max())), total + _number(difference.sum())
        best, other = a.argmax(-1, keepdim=True), b.argmax(-1, keepdim=True)  # (outputs, 1)
        near = (a.gather(1, best) - a.gather(1, other)) < TOLERANCE
        outcomes += torch.stack([best == other, (best != other) & near, (best != other) & ~near]).sum((1, 2))
    counts = Counts(*map(int, outcomes.tolist()))
    return LabelParity(peer, text, cases, int(outcomes.sum()), largest, total / numbers, counts)


def _number(value: Tensor) -> float:
    """Return infinity for NaN, which every comparison would accept."""
    return float(value.nan_to_num(nan=float("inf"), posinf=float("inf")))
