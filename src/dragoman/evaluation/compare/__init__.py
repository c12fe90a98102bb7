"""Runs side by side.

runs.py      reading, grouping by seeds, what differs     scores.py   decoding a text: BLEU with confidence
columns.py   which numbers are shown                      page.py     tables in the terminal, and a page
"""

from __future__ import annotations

from dragoman.evaluation.compare.runs import ComparedRun, Curve, Group, RunComparison, Statistic, compare, short_names

__all__ = ["ComparedRun", "Curve", "Group", "RunComparison", "Statistic", "compare", "short_names"]
