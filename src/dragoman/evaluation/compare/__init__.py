"""Comparison of training runs.

runs.py     reading, grouping by seeds, differences, BLEU of a test set with intervals
page.py     the tables of the terminal, and the page with charts
"""

from dragoman.evaluation.compare.runs import Group, RunComparison, Statistic, compare_runs, short_names

__all__ = ["Group", "RunComparison", "Statistic", "compare_runs", "short_names"]
