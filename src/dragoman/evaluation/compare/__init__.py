"""Comparison of training runs.

runs.py     reading, grouping by seeds, differences      scores.py    BLEU of a test set with intervals
curves.py   charts                                       page.py      the tables of the terminal, and the page
"""

from __future__ import annotations

from dragoman.evaluation.compare.runs import Group, RunComparison, Statistic, compare_runs, short_names

__all__ = ["Group", "RunComparison", "Statistic", "compare_runs", "short_names"]
