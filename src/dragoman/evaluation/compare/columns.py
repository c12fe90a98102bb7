"""The columns of the tables of a comparison, and the text of their cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dragoman.evaluation.compare.runs import Group, RunComparison, short_names

__all__ = ["Column", "best_groups", "cell_text", "columns", "differences", "value_text"]

_ABSENT = object()


def _millions(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e5 else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    return f"{seconds / 60:.0f} min" if rounded < 7200 else f"{rounded // 3600} h {rounded % 3600 // 60} min"


@dataclass(frozen=True)
class Column:
    """One number of every group.

    better: +1 if larger is better, -1 if smaller is, 0 for a cost.  bar: the page draws a bar.  brief: the table in the
    terminal has the column.
    """

    key: str
    title: str
    show: Callable[[float], str]
    better: int = 0
    bar: bool = False
    brief: bool = True


_COST = (
    Column("parameters", "parameters", _millions, bar=True),
    Column("steps", "steps", "{:,.0f}".format, bar=True),
    Column("seconds", "time", _duration, bar=True),
    Column("tokens_per_second", "tokens/s", "{:,.0f}".format, bar=True),
    Column("memory_mb", "memory MB", "{:,.0f}".format, bar=True),
)
_VALID = (
    Column("valid.valid_loss", "valid loss", "{:.3f}".format, -1),
    Column("valid.perplexity", "perplexity", "{:.2f}".format, -1, brief=False),
    Column("valid.bits_per_character", "bits/character", "{:.3f}".format, -1),
    Column("valid.bleu", "valid BLEU", "{:.2f}".format, +1),
    Column("valid.chrf", "valid chrF", "{:.2f}".format, +1, brief=False),
    Column("valid.exact_match", "exact match %", "{:.1f}".format, +1, brief=False),
    Column("valid.accuracy", "accuracy %", "{:.2f}".format, +1),
    Column("valid.precision", "precision %", "{:.2f}".format, +1, brief=False),
    Column("valid.recall", "recall %", "{:.2f}".format, +1, brief=False),
    Column("valid.f1", "F1 %", "{:.2f}".format, +1),
)
_TEST = (
    Column("test.bleu", "test BLEU", "{:.2f}".format, +1),
    Column("test.chrf", "test chrF", "{:.2f}".format, +1),
)


def columns(comparison: RunComparison) -> list[Column]:
    """Return the columns with a number in at least one group; scores without a predefined title get their name."""
    present = dict.fromkeys(key for group in comparison.groups for key in group.numbers)
    known = {column.key for column in _VALID}
    others = [key for key in present if key.startswith("valid.") and key not in known]
    extra = (Column(key, key.removeprefix("valid.").replace("_", " "), "{:.3f}".format, brief=False) for key in others)
    return [column for column in (*_TEST, *_VALID, *extra, *_COST) if column.key in present]


def cell_text(group: Group, column: Column) -> tuple[str, str]:
    """Return the mean, and `±` half of the 95 % interval and `σ` the standard deviation over seeds, if known."""
    number = group.numbers.get(column.key)
    if number is None:
        return "–", ""
    half = group.numbers.get(f"{column.key}_half")
    notes = [] if half is None else [f"±{column.show(half.mean)}"]
    if number.std and column.key != "parameters":
        notes.append(f"σ{column.show(number.std)}")
    return column.show(number.mean), " ".join(notes)


def value_text(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def differences(group: Group, comparison: RunComparison) -> list[str]:
    """Return the values that at most half of the groups share, rare ones first: `position rotary`, `n_heads 4`, ..."""
    names = short_names(comparison.differing)

    def sharers(key: str) -> int:
        return sum(other.differs.get(key, _ABSENT) == group.differs[key] for other in comparison.groups)

    special = [key for key in group.differs if 2 * sharers(key) <= len(comparison.groups)]
    return [f"{names[key]} {value_text(group.differs[key])}" for key in sorted(special, key=sharers)]


def best_groups(comparison: RunComparison, column: Column) -> list[Group]:
    """Return the groups with the best number; none for a cost or if all are equal."""
    having = [group for group in comparison.groups if column.key in group.numbers]
    worth = [column.better * group.numbers[column.key].mean for group in having]
    return [group for group, value in zip(having, worth, strict=True) if min(worth) < value == max(worth)]
