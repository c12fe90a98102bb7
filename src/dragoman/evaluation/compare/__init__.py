"""Comparison of training runs.

runs.py      reading, grouping by seeds, differences      scores.py    decoding a test set, BLEU with intervals
columns.py   the numbers of the tables                    curves.py    charts
page.py      the tables of the terminal, and the page
"""

from __future__ import annotations

from dragoman.evaluation.compare.runs import (
    ComparedRun,
    Curve,
    Group,
    RunComparison,
    Statistic,
    compare_runs,
    short_names,
)

__all__ = ["ComparedRun", "Curve", "Group", "RunComparison", "Statistic", "compare_runs", "short_names"]
