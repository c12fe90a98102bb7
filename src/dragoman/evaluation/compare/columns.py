"""Which numbers a comparison shows, and how people read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dragoman.evaluation.compare.runs import Group, RunComparison, short_names

__all__ = ["Column", "best_groups", "cell_text", "columns", "differences", "value_text"]

_ABSENT = object()


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _millions(value: float) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e5 else f"{value:,.0f}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{seconds / 60:.0f} min" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _digits(count: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{count}f}"


@dataclass(frozen=True)
class Column:
    """One number of every group.  better: +1 where more is better, -1 where less is, 0 for a cost.

    bar: the page draws its size.  brief: the terminal has room for it.
    """

    key: str
    title: str
    show: Callable[[float], str]
    better: int = 0
    bar: bool = False
    brief: bool = True


_COST = (
    Column("parameters", "parameters", _millions, bar=True),
    Column("steps", "steps", _count, bar=True),
    Column("seconds", "time", _duration, bar=True),
    Column("tokens_per_second", "tokens/s", _count, bar=True),
    Column("memory_mb", "memory MB", _count, bar=True),
)
_VALID = (
    Column("valid.valid_loss", "valid loss", _digits(3), -1),
    Column("valid.perplexity", "perplexity", _digits(2), -1, brief=False),
    Column("valid.bits_per_character", "bits/character", _digits(3), -1),
    Column("valid.bleu", "valid BLEU", _digits(2), +1),
    Column("valid.chrf", "valid chrF", _digits(2), +1, brief=False),
    Column("valid.exact_match", "exact match %", _digits(1), +1, brief=False),
    Column("valid.accuracy", "accuracy %", _digits(2), +1),
    Column("valid.precision", "precision %", _digits(2), +1, brief=False),
    Column("valid.recall", "recall %", _digits(2), +1, brief=False),
    Column("valid.f1", "F1 %", _digits(2), +1),
)
_TEST = (
    Column("test.bleu", "test BLEU", _digits(2), +1),
    Column("test.chrf", "test chrF", _digits(2), +1),
)


def columns(comparison: RunComparison) -> list[Column]:
    """The columns in which at least one group has a number; a score not known here goes by its own name."""
    present = dict.fromkeys(key for group in comparison.groups for key in group.numbers)
    known = {column.key for column in _VALID}
    others = [key for key in present if key.startswith("valid.") and key not in known]
    own = (Column(key, key.removeprefix("valid.").replace("_", " "), _digits(3), brief=False) for key in others)
    return [column for column in (*_TEST, *_VALID, *own, *_COST) if column.key in present]


def cell_text(group: Group, column: Column) -> str:
    """The mean, `±` half the 95 % interval where there is one, `σ` the standard deviation over seeds."""
    number = group.numbers.get(column.key)
    if number is None:
        return "–"
    half = group.numbers.get(f"{column.key}_half")
    text = column.show(number.mean) + ("" if half is None else f" ±{column.show(half.mean)}")
    return text + ("" if not number.std or column.key == "parameters" else f" σ{column.show(number.std)}")


def value_text(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def differences(group: Group, comparison: RunComparison) -> list[str]:
    """`position rotary`, `n_heads 4`, ...: what is special about the group; not what most groups have."""
    names = short_names(comparison.differing)

    def sharers(key: str) -> int:
        return sum(other.differs.get(key, _ABSENT) == group.differs[key] for other in comparison.groups)

    special = [key for key in group.differs if 2 * sharers(key) <= len(comparison.groups)]
    return [f"{names[key]} {value_text(group.differs[key])}" for key in sorted(special, key=sharers)]


def best_groups(comparison: RunComparison, column: Column) -> list[Group]:
    """The groups with the best number; none where it is a cost, or the same for all."""
    having = [group for group in comparison.groups if column.key in group.numbers]
    worth = [column.better * group.numbers[column.key].mean for group in having]
    return [group for group, value in zip(having, worth, strict=True) if min(worth) < value == max(worth)]
